//! Opening words that a mask hides: what [`reveal::open`] does, and a record of it for tests.

use crate::Error;
use crate::ops::reveal;
use crate::session::Session;

/// Opens `x` to both parties, modulo 2^`width`. Every word is the difference of a secret and a mask that is uniform modulo
/// 2^`width` and masks nothing else.
pub(crate) fn masked(s: &mut Session, x: &[u64], width: u32) -> Result<Vec<u64>, Error> {
    let opened = reveal::open(s, x, width)?;
    note(s, "", &opened, &[width]);
    Ok(opened)
}

/// Takes note of words opened under masks, of `widths` bits in turn, as the part `part` of the current operation.
pub(crate) fn note(s: &mut Session, part: &str, opened: &[u64], widths: &[u32]) {
    #[cfg(any(test, feature = "audit"))]
    {
        let path = s.channel().ledger_mut().path().to_owned() + part;
        s.audit.note(&path, opened, widths);
    }
    #[cfg(not(any(test, feature = "audit")))]
    let _ = (s, part, opened, widths);
}
