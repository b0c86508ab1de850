//! Cached operands take the masks that were made for them, or none.

use waggle_protocols::cached::OperandForm as Form;
use waggle_protocols::{Abb, Axis, Error, Needs, Operand, OperandId, OperandKind, Shape};

use waggle_testing::laws::planner;
use waggle_testing::{TWO_PHASES, own};

use crate::factors;
use crate::small::{cached, late, run, share};

const KEYS: OperandId = OperandId { layer: 25, kind: OperandKind::Keys, generation: 1, part: 0 };
const FORM: Form = Form { batch: 2, d: 4, axis: Axis::Rows, width: 29 };

/// Shapes of a product of two rows with three tokens of a cached operand.
fn shapes(form: Form) -> [[usize; 3]; 2] {
    factors(form.axis, (form.batch, 2, form.d), 3)
}

fn product<B: Abb>(b: &mut B, form: Form, operand: &mut Operand, [x, m]: &[B::Words; 2]) -> Result<B::Words, Error> {
    cached(b, [x, m], form.width, form.axis, operand)
}

/// The needs of a product with the operand `id`.
fn needs(id: OperandId) -> Needs {
    let mut plan = planner(TWO_PHASES);
    let words = shapes(FORM).map(|shape| Shape(shape.to_vec()));
    product(&mut plan, FORM, &mut Operand::new(id), &words).expect("plan");
    plan.needs()
}

#[test]
fn masks_of_another_form_are_refused_before_a_word_is_sent() {
    for form in [
        Form { width: 44, ..FORM },
        Form { batch: 4, d: 2, ..FORM },
        Form { axis: Axis::Columns, ..FORM },
        Form { batch: 1, ..FORM },
        Form { d: 8, ..FORM },
    ] {
        let refused = |result: Result<_, Error>| match result.map(|_: ()| ()) {
            Err(Error::OperandForm { operand, expected, got }) => {
                assert_eq!((operand, expected, got), (KEYS, FORM, form));
            }
            other => panic!("{form}: {other:?}"),
        };
        let needs = needs(KEYS);
        let shapes = shapes(form);
        let shares = shapes.map(|shape| share(&vec![1 << 28; shape.iter().product()], &shape));
        run(TWO_PHASES, |abb| {
            abb.prepare(&needs, |_| None, &mut |_| ())?;
            let before = abb.session().channel().ledger_mut().total().messages;
            let words = shares.each_ref().map(|shares| own(abb, shares).clone());
            refused(product(abb, form, &mut Operand::new(KEYS), &words).map(|_| ()));
            assert_eq!(abb.session().channel().ledger_mut().total().messages, before, "nothing was sent");
            Ok(())
        });
        let mut plan = planner(TWO_PHASES);
        plan.set_stock(&needs);
        refused(product(&mut plan, form, &mut Operand::new(KEYS), &shapes.map(|s| Shape(s.to_vec()))).map(|_| ()));
    }
}

#[test]
fn masks_of_another_name_stay_where_they_are() {
    let shapes = shapes(FORM);
    let shares = shapes.map(|shape| share(&vec![1; shape.iter().product()], &shape));
    for other in [
        OperandId { layer: 24, ..KEYS },
        OperandId { kind: OperandKind::Clusters, ..KEYS },
        OperandId { generation: 0, ..KEYS },
        OperandId { part: 1, ..KEYS },
    ] {
        let needs = needs(other);
        let [(_, ledger), _] = run(TWO_PHASES, |abb| {
            abb.prepare(&needs, |_| None, &mut |_| ())?;
            let words = shares.each_ref().map(|shares| own(abb, shares).clone());
            product(abb, FORM, &mut Operand::new(KEYS), &words)?;
            // A stock that lacks some of the needs refuses.
            let role = abb.session().role();
            std::mem::take(abb.stock()).drain(&needs.stored(), role, |_| Ok::<_, Error>(()))
        });
        let mut plan = planner(TWO_PHASES);
        plan.prepare(&needs).expect("plan");
        product(&mut plan, FORM, &mut Operand::new(KEYS), &shapes.map(|s| Shape(s.to_vec()))).expect("plan");
        assert_eq!(plan.ledger().untimed(), ledger, "{other}");
        assert!(late(&mut plan) > 0, "{other}: made on the spot");
    }
}

#[test]
fn no_mask_serves_two_operands_and_no_token_is_taken_back() {
    let shapes = shapes(FORM);
    let shares = shapes.map(|shape| share(&vec![1; shape.iter().product()], &shape));
    let needs = needs(KEYS);
    run(TWO_PHASES, |abb| {
        abb.prepare(&needs, |_| None, &mut |_| ())?;
        let words = shares.each_ref().map(|shares| own(abb, shares).clone());
        let mut operand = Operand::new(KEYS);
        product(abb, FORM, &mut operand, &words)?;
        let fewer = [words[0].slice(ndarray::s![.., .., ..2]), words[1].slice(ndarray::s![.., ..2, ..])];
        let shrunk = product(abb, FORM, &mut operand, &fewer.map(|part| part.to_owned().into_dyn()));
        assert!(matches!(shrunk, Err(Error::OperandShrinks { operand: KEYS, expected: 3, got: 2 })), "{shrunk:?}");
        let twice = product(abb, FORM, &mut Operand::new(KEYS), &words);
        assert!(matches!(twice, Err(Error::OperandTwice { operand: KEYS })), "{twice:?}");
        Ok(())
    });
}
