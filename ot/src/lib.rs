//! ot
