//! The secret that keys the hashes of credentials and payload leaves.
//!
//! Made at the first start and kept in the store as a document, or read from a file; the same for
//! all processes on one store: with another one, every caller would be a new caller. It is never
//! shown; what uses it gets a secret of its own, derived by name.

use std::fmt;
use std::path::Path;

use onceward::audit::SealKey;
use onceward::engine::{Engine, Put};
use onceward_core::key::Subject;
use ring::hmac;
use sha2::{Digest, Sha256};

use super::RESERVED_TENANT;
use crate::failure::Failure;

/// A space that no list of the control API shows.
const SPACE: &str = "onceward.secret";
const NAME: &str = "identity";
/// What the control API's secret is derived under.
pub(crate) const PERMITS: &str = "permits";
/// Fewest bytes of a secret file: fewer could be guessed.
const MIN_FILE_BYTES: usize = 32;
/// Most bytes of a secret file.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// A secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret([u8; 32]);

impl Secret {
    /// The file's secret where one is named, otherwise the store's.
    pub(crate) async fn load(file: Option<&Path>, engine: &Engine) -> Result<Self, Failure> {
        match file {
            Some(file) => Self::of_file(file),
            None => Self::of_store(engine).await,
        }
    }

    /// The secret in a file; white space around it does not count.
    fn of_file(file: &Path) -> Result<Self, Failure> {
        let failed = |why: String| {
            let message = format!("can't use the secret file {}: {why}", file.display());
            Failure::usage("identity.secret", message)
        };
        let found = std::fs::metadata(file).map_err(|error| failed(error.to_string()))?;
        if found.len() > MAX_FILE_BYTES {
            return Err(failed(format!("{} bytes, at most {MAX_FILE_BYTES}", found.len())));
        }
        let bytes = std::fs::read(file).map_err(|error| failed(error.to_string()))?;
        let secret = bytes.trim_ascii();
        if secret.len() < MIN_FILE_BYTES {
            return Err(failed(format!("{} bytes, at least {MIN_FILE_BYTES}", secret.len())));
        }
        Ok(Self(Sha256::digest(secret).into()))
    }

    /// The secret as it is, for those who only read: none when there is none yet.
    pub(crate) async fn find(
        file: Option<&Path>,
        engine: &Engine,
    ) -> Result<Option<Self>, Failure> {
        if let Some(file) = file {
            return Self::of_file(file).map(Some);
        }
        let subject = Subject::new(RESERVED_TENANT, SPACE, NAME)?;
        let found = engine.get(&subject).await?;
        let secret = found.and_then(|found| <[u8; 32]>::try_from(&found.value[..]).ok());
        Ok(secret.map(Self))
    }

    /// The key of the audit's chain.
    pub(crate) fn seal_key(&self) -> SealKey {
        seal_key(&self.derive(PERMITS))
    }

    /// The store's secret; made if this is the first start.
    async fn of_store(engine: &Engine) -> Result<Self, Failure> {
        let subject = Subject::new(RESERVED_TENANT, SPACE, NAME)?;
        let mut made = [0; 32];
        getrandom::fill(&mut made).map_err(|error| {
            Failure::failed("secret", format!("the system gives no random numbers: {error}"))
        })?;
        loop {
            if let Some(found) = engine.get(&subject).await? {
                return <[u8; 32]>::try_from(&found.value[..]).map(Self).map_err(|_| {
                    let message = "the secret that the store keeps is damaged: it has not 32 bytes";
                    Failure::failed("store.corrupt", message)
                });
            }
            match engine.put(&subject, 0, Some(made[..].into())).await? {
                Put::Written(_) => return Ok(Self(made)),
                // Another process was first: theirs is the one, unless someone deleted it.
                Put::Conflict { current: 0 | 1 } => {}
                Put::Conflict { .. } => {
                    let message = "the secret that the store kept was deleted";
                    return Err(Failure::failed("store.corrupt", message));
                }
            }
        }
    }

    /// The secret for one use.
    pub(crate) fn derive(&self, name: &str) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let tag = hmac::sign(&key, name.as_bytes());
        let mut derived = [0; 32];
        derived.copy_from_slice(tag.as_ref());
        derived
    }
}

/// The key of the audit's chain, from the control API's own secret.
pub(crate) fn seal_key(permits: &[u8; 32]) -> SealKey {
    SealKey::new(Secret(*permits).derive("audit"))
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
