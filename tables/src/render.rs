//! `waggle tables render`: a table from the records that an earlier run kept.

use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use thiserror::Error;

use crate::ablation;
use crate::records::{self, FileError, Table};

/// Makes a table again from its records, without measuring anything.
///
/// The result is the same to the letter as what the measuring command printed.
#[derive(Args, Debug)]
pub(crate) struct RenderArgs {
    /// The records, a line each, as the measuring command wrote them beside its table.
    #[arg(value_name = "FILE")]
    records: PathBuf,
    /// Write the table to this file as well.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// What ends the command.
#[derive(Debug, Error)]
pub enum RenderError {
    /// A file is missing or spoilt.
    #[error(transparent)]
    File(#[from] FileError),
    /// No records.
    #[error("{path} has no records", path = .0.display())]
    Empty(PathBuf),
    /// The table lacks a number.
    #[error(transparent)]
    Ablation(#[from] ablation::RecordsError),
    /// The table could not be written.
    #[error("cannot write {path}: {source}", path = .path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// The part of a record that tells how to read the rest.
#[derive(Deserialize)]
struct Kind {
    table: Table,
}

pub(crate) fn run(args: &RenderArgs) -> Result<String, RenderError> {
    let text = records::read(&args.records)?;
    let kinds: Vec<Kind> = records::parse(&text)?;
    let table = match kinds.first() {
        None => return Err(RenderError::Empty(args.records.clone())),
        Some(Kind { table: Table::Ablation }) => ablation::render(&records::parse(&text)?)?,
    };
    if let Some(path) = &args.markdown {
        std::fs::write(path, &table).map_err(|source| RenderError::Write { path: path.clone(), source })?;
    }
    Ok(table)
}
