//! Fields of the kernel's structures, by their offset in bytes.

/// Returns the bytes at an offset. If some of them are beyond the end, returns only zeros.
#[must_use]
pub fn array<const LENGTH: usize>(bytes: &[u8], at: usize) -> [u8; LENGTH] {
    let mut value = [0; LENGTH];
    if let Some(found) = bytes.get(at..at + LENGTH) {
        value.copy_from_slice(found);
    }
    value
}

#[must_use]
pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(array(bytes, at))
}

/// Writes bytes at an offset. Writes nothing if they do not fit.
pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}
