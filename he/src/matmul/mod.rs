//! Matrix products of a shared operand with a plaintext one, by coefficient packing (Cheetah, USENIX Security 2022,
//! section 3; eprint 2022/207).
//!
//! # Packing
//! For X (M x k) and W (k x n) let `x(Z) = sum X[i,j] Z^(i n k + k-1-j)` and `w(Z) = sum W[j,c] Z^(c k + j)`. The
//! coefficient of x w at `i n k + c k + k-1` is `sum_j X[i,j] W[j,c]`: another term `(i, j, c', j')` lands there only
//! if `j' - j` is a multiple of k. The degree stays below `M k n + k - 1 <= N + k - 1`, so terms that wrap around
//! (with a sign) land below position `k - 1`, where no output lies. Dimensions need not be powers of two.
//!
//! A [`Tile`] says how a product with batch items is cut:
//! * The rows of `group` items share one uploaded ciphertext, as if they were one matrix with `group * rows` rows.
//! * The columns of *all* items form one long row of columns, cut into responses of `cols` columns each. A column of
//!   item b takes the uploaded ciphertext of b. Products of several uploads add up in one response, since their
//!   columns differ. So small items share responses too.
//! * The inner dimension is cut into pieces of `inner`, whose products add up.
//!
//! # Runs of rows
//! Many rows are cheaper where their coefficients lie next to each other. With a power of two r, the *run*, and
//! `Y = Z^r`, let `x(Z) = sum X[i,j] Z^(i mod r) Y^(floor(i / r) n k + k-1-j)` and `w(Y) = sum W[j,c] Y^(c k + j)`.
//! The polynomial w is one in Y, so every power of Z below r keeps a product of its own, in `Z_q[Y] / (Y^(N/r) + 1)`.
//! The argument above holds in each, with the rows `i mod r`. The result of row i and column c is at
//! `(floor(i / r) n k + c k + k-1) r + i mod r`. The rows fill up whole runs: `ceil(M / r) r k n <= N`. For r = 1
//! this is the formula above.
//!
//! The transform of `w(Z^r)` is that of w in the small ring, every value r times in a row. So a weight polynomial has
//! N / r words and is transformed in `log2(N / r)` layers, and its product with ciphertexts is at each of N / r
//! points a product of small matrices (`panel`). Nothing else changes: an output coefficient collects the errors of
//! as many weights as before, and the wire carries the same numbers of coefficients.
//!
//! Where several items share an upload, a response also holds products of a column's weights with rows of *other*
//! items. Those coefficients are never sent.
//!
//! # Packed responses
//! A response carries a whole polynomial c1, however few coefficients of c0 it carries. Packing puts several products
//! into one response. With `inner` a power of two and X moved down by `inner - 1` places, the outputs of a product of
//! tiles lie at multiples of `inner`. A binary tree of merges ([`crate::GaloisKeys`]; BumbleBee, NDSS 2025) then puts
//! the products of up to `inner` tiles into one ciphertext. Each merge doubles the wanted coefficients, so the
//! uploads are divided by that power of two modulo q before they are multiplied. Long inner tiles, which need few
//! uploads, become cheap at the price of one key switch per product of tiles. The run is 1 here, as the automorphisms
//! of a merge would mix the rows of longer ones.
//!
//! # What the key holder sees
//! Per response: `c1`, and of `c0` the coefficients of outputs, each with a mask uniform over `Z_q` added. Before
//! that a fresh encryption of zero under the holder's public key (new u, e1, e2) was added. The masked coefficients
//! are uniform and independent of everything, whatever noise or product they carry; `c1 + a u + e2` is pseudorandom
//! by RLWE with secret u. Coefficients of c0 that are not sent are simply absent. So the message can be simulated
//! from its length. Rounding to fewer bits (modulus switching) is a function of what is sent and leaks nothing more.
//! Packing comes before all of this: the argument holds for any ciphertext.
//!
//! # Random operands
//! Where the encrypted operand may be random, half of both messages is expanded from public seeds. The module
//! `seeded` says how, and why that is safe.
//!
//! # Error
//! The mask hides the noise e, without a flood of 40 extra bits. The price is that both parties round separately:
//! `round((m q/2^l + e + r) 2^l/q) - round(r 2^l/q) = m` up to `1 + |e| 2^l / q`. See [`ProductPlan::lsb_error`].

mod cache;
mod cells;
mod columns;
mod cost;
mod evaluate;
mod layout;
mod noise;
mod opened;
mod packs;
mod panel;
mod plan;
mod response;
mod search;
mod seeded;
#[cfg(test)]
mod seeded_tests;
mod spec;
#[cfg(test)]
mod tests;
mod tiling;
mod weights;

pub use cache::{CachedWeights, WeightCache};
pub use plan::{MatmulPlan, ProductPlan};
pub use response::ResponseSeeds;
pub use seeded::SeededPlan;
pub use spec::{DEFAULT_CORES, MatmulShape, MatmulSpec, Packing, PlanOptions};
pub use tiling::Tile;
pub use weights::{Entries, Weights};
