//! Cuts of tensors.

use engine::Tensor;

/// The entries `index` of the axis `axis`, in the order of `index`.
pub fn take<T: Tensor>(x: &T, axis: usize, index: &[usize]) -> T {
    let mut parts = Vec::new();
    let mut start = 0;
    while start < index.len() {
        let mut end = start + 1;
        while end < index.len() && index[end] == index[end - 1] + 1 {
            end += 1;
        }
        parts.push(x.slice(axis, index[start]..index[end - 1] + 1));
        start = end;
    }
    T::concat(axis, &parts.iter().collect::<Vec<_>>())
}
