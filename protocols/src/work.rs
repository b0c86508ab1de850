//! The work of an operation, known from shapes alone like its messages.
//!
//! The work of a [`Cost`](crate::cost::Cost) is counted by *kernel*: a loop whose time for one unit hardly depends on
//! the shape around it. The seconds that a machine takes for a unit of each kernel ([`Rates`]) predict its time for
//! every shape.

use std::fmt;

macro_rules! kernels {
    ($($(#[doc = $unit:literal])* $kernel:ident = $name:literal, $seconds:literal, $grain:expr;)*) => {
        /// A loop that is timed on its own. The documentation of each kernel says what one unit of its work is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kernel {
            $($(#[doc = $unit])* $kernel,)*
        }

        impl Kernel {
            /// All kernels, in their order.
            pub const ALL: &'static [Kernel] = &[$(Kernel::$kernel),*];

            /// Name of the kernel in files.
            pub fn name(self) -> &'static str {
                match self { $(Kernel::$kernel => $name),* }
            }

            /// Seconds that a unit takes on the machine of reference.
            fn reference(self) -> f64 {
                match self { $(Kernel::$kernel => $seconds * 1e-9),* }
            }

            /// Units that make up one task of the thread pool; `None` if one thread does all the work.
            pub fn grain(self) -> Option<u64> {
                match self { $(Kernel::$kernel => $grain),* }
            }
        }
    };
}

// Seconds are nanoseconds of one core of a Sapphire Rapids Xeon at 2.0 GHz, to a digit or so. They only say how a
// calibration shares time among kernels that its runs cannot tell apart.
kernels! {
    /// A coefficient of a ciphertext that a key holder makes for a matrix product.
    Encrypt = "encrypt", 25.0, Some(1 << 12);
    /// A coefficient of a ciphertext that a key holder makes of a random operand, with its corrections.
    Request = "request", 40.0, Some(1 << 12);
    /// A coefficient of a response to a matrix product that the key holder opens.
    Decrypt = "decrypt", 10.0, Some(1 << 12);
    /// A coefficient of a ciphertext that the evaluator of a matrix product reads.
    ReadUpload = "read upload", 15.0, Some(1 << 12);
    /// A layer of the transform of a weight polynomial, times one of its points.
    TransformWeight = "transform weight", 0.08, Some(1 << 18);
    /// A weight read from its matrix and put into a polynomial.
    EncodeWeight = "encode weight", 1.5, Some(1 << 14);
    /// A point of a weight polynomial that is brought into place.
    PlaceWeight = "place weight", 1.0, Some(1 << 14);
    /// A product of two coefficients.
    Product = "product", 0.9, Some(1 << 16);
    /// A product of two coefficients, where weights act on runs of rows.
    RunProduct = "run product", 0.1, Some(1 << 18);
    /// A coefficient of a response that the evaluator of a matrix product makes.
    Answer = "answer", 45.0, Some(1 << 12);
    /// A coefficient of a merge, once for each digit.
    Merge = "merge", 6.0, Some(1 << 13);
    /// A coefficient of a ciphertext that the key holder makes for elementwise products.
    OleEncrypt = "ole encrypt", 25.0, Some(1 << 12);
    /// A coefficient of a ciphertext that the evaluator of elementwise products multiplies.
    OleMultiply = "ole multiply", 20.0, Some(1 << 12);
    /// A coefficient of a response that the evaluator of elementwise products makes.
    OleAnswer = "ole answer", 40.0, Some(1 << 12);
    /// A coefficient of a response to elementwise products that the key holder opens.
    OleOpen = "ole open", 20.0, Some(1 << 12);
    /// A byte of a public key, made or read.
    PublicKey = "public key", 20.0, None;
    /// A byte of Galois keys that their holder makes.
    MakeGalois = "make galois keys", 3.0, Some(1 << 16);
    /// A byte of Galois keys that the other party reads.
    ReadGalois = "read galois keys", 5.0, Some(1 << 16);
    /// A correlated OT made by a sender of silent OT.
    SilentSend = "silent ot, sender", 14.0, Some(1 << 11);
    /// A correlated OT made by a receiver of silent OT.
    SilentReceive = "silent ot, receiver", 15.0, Some(1 << 11);
    /// A leaf of a tree of a sender of SoftSpoken OT, for one OT. Each OT takes 2^k / k such units.
    SoftSpokenSend = "softspoken ot, sender", 2.5, Some(1 << 14);
    /// A leaf of a tree of a receiver of SoftSpoken OT, for one OT. Each OT takes 2^k / k such units.
    SoftSpokenReceive = "softspoken ot, receiver", 2.6, Some(1 << 14);
    /// A correlated OT taken from its pool.
    TakeOt = "take ot", 2.0, None;
    /// A block of pad hashed from a key of an OT.
    Pad = "pad", 3.5, Some(1 << 12);
    /// A word that an OT transfers, made or read.
    Word = "transferred word", 6.0, Some(1 << 12);
    /// An entry of a table of a 1-of-N transfer, written or chosen from.
    TableEntry = "table entry", 1.0, Some(1 << 14);
    /// A digit of a comparison, or a join of digits.
    Digit = "digit", 12.0, None;
    /// A leaf of a tree of a key of a distributed point function, made.
    TreeMade = "point function made", 1.5, Some(1 << 11);
    /// A word at the leaf of a key of a distributed point function.
    LeafWord = "point function leaf", 15.0, None;
    /// A leaf of a tree of a key of a distributed point function, expanded.
    TreeExpanded = "point function expanded", 3.0, Some(1 << 11);
    /// A term of the inner product of a table with an expanded key.
    WindowTerm = "window", 0.7, Some(1 << 13);
    /// A weight read for a product in the clear.
    ReadWeight = "read weight", 0.6, Some(1 << 18);
    /// A weight times an entry of a row in the clear.
    WeightTerm = "weight term", 0.15, Some(1 << 18);
    /// A term of a product of matrices of words.
    WordTerm = "word term", 0.3, Some(1 << 16);
    /// A word of a cached operand, laid out for a product with it.
    CachedWord = "cached word", 3.0, None;
    /// A word drawn, masked, opened or read, together with the local computation on it.
    OpenWord = "opened word", 11.0, None;
    /// A word put into the stock or taken out.
    StockWord = "stock word", 3.0, None;
    /// A call of an operation.
    Call = "call", 10e3, None;
    /// A byte sent, encryption included. A thread of its own sends bytes.
    ByteSent = "byte sent", 0.6, None;
    /// A byte received, decryption included.
    ByteReceived = "byte received", 0.6, None;
    /// A message sent and received, at each party.
    Message = "message", 15e3, None;
    /// A message sent over an imitated network. A thread of its own sends messages.
    Imitated = "imitated message", 20e3, None;
    /// The base OTs of a session.
    BaseOts = "base ots", 20e6, None;
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Seconds that one core of a machine takes for a unit of each kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates(Vec<f64>);

impl Rates {
    /// Rates that are all zero.
    pub fn zero() -> Self {
        Rates(vec![0.0; Kernel::ALL.len()])
    }

    /// The rates of a machine of reference, to a digit or so: a start for a calibration.
    pub fn reference() -> Self {
        Rates(Kernel::ALL.iter().map(|kernel| kernel.reference()).collect())
    }

    /// These rates, but a unit of `kernel` takes `seconds`.
    pub fn with(mut self, kernel: Kernel, seconds: f64) -> Self {
        self.0[kernel as usize] = seconds;
        self
    }

    /// Seconds that a unit of `kernel` takes.
    pub fn of(&self, kernel: Kernel) -> f64 {
        self.0[kernel as usize]
    }
}

/// The work of one kernel in a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The kernel.
    pub kernel: Kernel,
    /// Numbers of units at the client and at the server.
    pub units: [u64; 2],
    /// Whether it belongs to a correlation that does not depend on the data, and is booked as `offline`.
    pub offline: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn kernels_have_names_of_their_own_and_a_reference() {
        let names: HashSet<_> = Kernel::ALL.iter().map(|kernel| kernel.name()).collect();
        assert_eq!(names.len(), Kernel::ALL.len());
        assert!(Kernel::ALL.iter().all(|&kernel| Rates::reference().of(kernel) > 0.0));
        assert_eq!(Rates::zero().with(Kernel::Pad, 2.5).of(Kernel::Pad), 2.5);
    }
}
