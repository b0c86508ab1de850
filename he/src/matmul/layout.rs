//! A product under one parameter set: its tiles, its packs, and the sizes of both messages.

use super::cells::Cells;
use super::packs::Packs;
use super::spec::MatmulSpec;
use super::tiling::{Tile, Tiling};
use crate::sampling::SEED_BYTES;
use crate::set::ParamSet;
use waggle_bits::packed_bytes;

/// How a product is cut and sent: everything that both parties must agree on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Layout {
    pub(super) spec: MatmulSpec,
    pub(super) set: ParamSet,
    pub(super) tiling: Tiling,
    pub(super) packs: Packs,
    /// Bits that each coefficient of a response keeps.
    pub(super) c0_bits: u32,
    pub(super) c1_bits: u32,
    /// `Some` if the messages are those of a [`SeededPlan`](super::SeededPlan).
    pub(super) seeded: Option<Cells>,
}

impl Layout {
    /// The layout that cuts the product `spec` by `tile` under `set`, without packing.
    pub(super) fn new(spec: &MatmulSpec, set: ParamSet, tile: Tile) -> Self {
        // c1 is multiplied by the key, which turns a rounding of 2^-b1 into 8.5 sqrt(N / 16) 2^-b1; these widths keep
        // that below 0.54 (N <= 4096) or 0.38 LSB, and the rounding of c0 at 1/16 LSB.
        let c1_extra = if set.degree() <= 4096 { 8 } else { 9 };
        let tiling = Tiling { shape: spec.shape, degree: set.degree(), tile };
        let packs = Packs::single(&tiling);
        Self {
            spec: *spec,
            set,
            tiling,
            packs,
            c0_bits: spec.width + 3,
            c1_bits: spec.width + c1_extra,
            seeded: None,
        }
    }

    /// This layout with full packs, or `None` if no two products would share a response.
    pub(super) fn packed(self) -> Option<Self> {
        Packs::full(&self.tiling).map(|packs| Self { packs, ..self })
    }

    /// For every entry of an upload, its coefficient and its index in X. A coefficient i of N or more stands for
    /// `-X^(i - N)`.
    pub(super) fn x_entries(&self, upload: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        // X^-s = -X^(N-s): entries that move below zero come out at N and above of twice the range.
        let (down, wrap) = (self.packs.shift(), 2 * self.set.degree());
        self.tiling.entries(upload).map(move |(position, entry)| ((wrap + position - down) & (wrap - 1), entry))
    }

    /// For every output of a response, in wire order, its coefficient and its index in Y.
    pub(super) fn outputs(&self, response: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (layout, members, down) = (*self, self.packs.members(response), self.packs.shift());
        let rows = members.rows.clone();
        members.columns.clone().flat_map(move |column_tile| {
            let members = members.clone();
            rows.clone().flat_map(move |row_tile| {
                let moved = layout.packs.moved(&members, column_tile, row_tile);
                let outputs = layout.tiling.outputs(column_tile, row_tile);
                outputs.map(move |(position, entry)| (position - down + moved, entry))
            })
        })
    }

    fn poly_bytes(&self) -> usize {
        self.set.degree() / 8 * self.set.log_q() as usize
    }

    /// Bytes of the upload.
    pub(super) fn upload_bytes(&self) -> usize {
        let (uploads, n) = (self.tiling.uploads(), self.set.degree());
        let Some(cells) = self.seeded else { return SEED_BYTES + uploads * self.poly_bytes() };
        let shape = self.spec.shape;
        let open = packed_bytes(uploads * n - shape.batch * shape.m * shape.k, &[self.spec.width]);
        uploads * self.correction_bytes(&cells) + open
    }

    /// Bytes of the seed and of the corrections of one upload.
    pub(super) fn correction_bytes(&self, cells: &Cells) -> usize {
        SEED_BYTES + packed_bytes(self.set.degree(), &[cells.bits()])
    }

    /// Bytes of a c1 in a response.
    pub(super) fn c1_bytes(&self) -> usize {
        packed_bytes(self.set.degree(), &[self.c1_bits])
    }

    /// Bytes of one response.
    pub(super) fn response_bytes(&self, response: usize) -> usize {
        if self.seeded.is_some() {
            return self.c1_bytes();
        }
        let members = self.packs.members(response);
        let columns =
            self.tiling.column_range(members.columns.end - 1).1 - self.tiling.column_range(members.columns.start).0;
        let rows = self.tiling.row_range(members.rows.end - 1).1 - self.tiling.row_range(members.rows.start).0;
        self.c1_bytes() + packed_bytes(columns * rows, &[self.c0_bits])
    }

    /// Bytes of all responses.
    pub(super) fn download_bytes(&self) -> usize {
        if self.seeded.is_some() {
            return SEED_BYTES + self.packs.responses() * self.c1_bytes();
        }
        // In a column of packs, all responses but the last have equally many rows, and all columns but the last are
        // alike.
        let (columns, rows) = (self.packs.column_packs(), self.packs.row_packs());
        let column = |column: usize| {
            let response = |row: usize| self.response_bytes(column * rows + row);
            (rows - 1) * response(0) + response(rows - 1)
        };
        (columns - 1) * column(0) + column(columns - 1)
    }
}
