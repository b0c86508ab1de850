//! he
