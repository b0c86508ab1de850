//! `waggle`: private text generation between two parties, from the command line.
#![forbid(unsafe_code)]

use std::alloc::System;
use std::process::ExitCode;

use zeroizing_alloc::ZeroAlloc;

/// Wipes all memory that is freed, including the old memory of vectors that grow. Most of it held shares, masks or
/// keys at some time.
#[global_allocator]
static ALLOCATOR: ZeroAlloc<System> = ZeroAlloc(System);

fn main() -> ExitCode {
    waggle::init();
    waggle_cli::run()
}
