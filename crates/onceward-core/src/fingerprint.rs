//! Placeholder.
use std::fmt;
/// Fp
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint {
    rules: u8,
    bytes: [u8; 32],
}
impl Fingerprint {
    /// x
    #[must_use]
    pub const fn from_stored(rules: u8, bytes: [u8; 32]) -> Self {
        Self { rules, bytes }
    }
    /// x
    #[must_use]
    pub const fn rules(&self) -> u8 {
        self.rules
    }
    /// x
    #[must_use]
    pub const fn hash(&self) -> &[u8; 32] {
        &self.bytes
    }
}
/// x
#[must_use]
pub fn fingerprint_bytes(bytes: &[u8]) -> Fingerprint {
    use sha2::Digest;
    Fingerprint::from_stored(1, sha2::Sha256::digest(bytes).into())
}
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for b in self.bytes {
            write!(f, "{b:02x}")?;
        }
        Ok(())
    }
}
