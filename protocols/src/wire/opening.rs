//! Opening shared words to both parties, because the caller's protocol says so or because a mask hides them.

use crate::Error;
use crate::cost::Cost;
use crate::session::Session;
use crate::words::mask;
use crate::work::Kernel;

/// Step of every message that opens words.
pub(crate) const STEP: &str = "reveal";

/// Opens `x` to both parties. Each word is reduced modulo 2^w, where the widths w repeat `widths`.
pub fn open(s: &mut Session, x: &[u64], widths: &[u32]) -> Result<Vec<u64>, Error> {
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let message =
        s.channel().exchange(STEP, &waggle_bits::pack(x, widths), waggle_bits::packed_bytes(x.len(), widths))?;
    let theirs = waggle_bits::unpack(STEP, &message, x.len(), widths)?;
    let words = x.iter().zip(theirs).zip(widths.iter().cycle());
    Ok(words.map(|((x, y), &width)| x.wrapping_add(y) & mask(width)).collect())
}

/// Cost of [`open`] of `n` words.
pub fn open_cost(n: usize, widths: &[u32]) -> Cost {
    let bytes = waggle_bits::packed_bytes(n, widths);
    if n == 0 { Cost::free() } else { Cost::free().work_at_both(Kernel::OpenWord, n).exchange(bytes, bytes) }
}

/// [`open`] of `x`, which are differences of secrets and masks. The masks must be uniform in their rings and mask
/// nothing else. `masks` are this party's parts of the masks, which only an audit looks at.
pub fn masked(
    s: &mut Session,
    x: &[u64],
    masks: impl IntoIterator<Item = u64>,
    widths: &[u32],
) -> Result<Vec<u64>, Error> {
    spend(s, "", masks, widths)?;
    let opened = open(s, x, widths)?;
    note(s, "", 0, &opened, widths);
    Ok(opened)
}

/// Tells an audit that this party's parts of `masks` are about to serve in the part `part` of the current operation.
/// The widths of the masks repeat `widths`. This fails if a mask has served before. Without an audit it does nothing.
pub(crate) fn spend(
    s: &mut Session,
    part: &str,
    masks: impl IntoIterator<Item = u64>,
    widths: &[u32],
) -> Result<(), Error> {
    #[cfg(any(test, feature = "audit"))]
    return s.audit.clone().spend(&path(s, part), masks, widths);
    #[cfg(not(any(test, feature = "audit")))]
    {
        let _ = (s, part, masks, widths);
        Ok(())
    }
}

/// Tells an audit which words were opened under masks in the part `part` of the current operation. They have the
/// positions from `start` on, and their widths repeat `widths`.
pub(crate) fn note(s: &mut Session, part: &str, start: usize, opened: &[u64], widths: &[u32]) {
    #[cfg(any(test, feature = "audit"))]
    s.audit.clone().note(&path(s, part), start, opened, widths);
    #[cfg(not(any(test, feature = "audit")))]
    let _ = (s, part, start, opened, widths);
}

#[cfg(any(test, feature = "audit"))]
fn path(s: &mut Session, part: &str) -> String {
    s.channel().ledger_mut().path().to_owned() + part
}
