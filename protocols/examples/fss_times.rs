//! Temporary.
use std::time::Instant;
use protocols::local::Pair;
use protocols::ops::fss::{self, table::{FssShape, Payload}, table::{CurveSpec, FssTable}};
use protocols::{Error, Options};
const N: usize = 1 << 16;
fn main() -> Result<(), Error> {
    let table = FssTable::parabolas(CurveSpec { index_bits: 7, low_bits: 9, base: -8.0, step: 16.0 / 65536.0, out_frac: 16, out_width: 30 }, |x| x.max(0.0));
    let shape: FssShape = table.shape();
    assert!(matches!(shape.payload, Payload::Parabola));
    let mut pair = Pair::new(Options::default())?;
    for _ in 0..6 {
        let cpu = || net::process_cpu_time().unwrap();
        let (t, c) = (Instant::now(), cpu());
        let [a, b] = pair.run(|abb| fss::prepare(abb.session(), &shape, N))?;
        let (m, d) = (Instant::now(), cpu());
        let keys = [a, b];
        pair.run(|abb| { let s = abb.session(); let x = vec![5u64; N]; let k = &keys[s.is_server() as usize]; fss::run(s, &table, k, &x).map(|_| ()) })?;
        let (e, f) = (Instant::now(), cpu());
        let us = |d: std::time::Duration| d.as_secs_f64() * 1e6 / N as f64;
        println!("prepare {:.2} us wall, {:.2} cpu a party; run {:.2} wall, {:.2} cpu a party", us(m - t), us(d - c) / 2.0, us(e - m), us(f - d) / 2.0);
    }
    Ok(())
}
