//! The relay's checkpoint: how far everything was acknowledged, in the event store's bucket.
//!
//! Rule: a checkpoint is an object of its own, numbered, created only where there is none: of two
//! relays that write the same number one wins, and the other reads what is there. One that finds a
//! higher fence has been overtaken and writes no more. Not every object store can replace an object
//! conditionally; all can create one.

use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::log::LogError;
use crate::events::Place;

/// Checkpoints that are kept: the last one, and one before it.
const KEPT: usize = 2;
/// The form that this program writes.
const FORMAT: u32 = 1;

/// How far a relay has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub(super) format: u32,
    /// Rises with every checkpoint.
    pub number: u64,
    /// The fence of the tenure that wrote it.
    pub fence: u64,
    /// Everything up to this segment and offset was acknowledged.
    pub segment: u64,
    /// See `segment`.
    pub offset: u32,
    /// Events that were published so far, duplicates counted.
    pub published: u64,
    /// Where a relay that starts looks back from.
    pub(super) lookback: (u64, u32),
    /// When the lookback's first event was published, by the store's clock.
    pub(super) lookback_at: u64,
    /// Ids that were published lately, the oldest first.
    pub(super) recent: Vec<(String, String)>,
    /// What held the relay back when it was written, by name.
    pub held_by: Option<String>,
}

impl Checkpoint {
    /// Its place.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { segment: self.segment, offset: self.offset }
    }
}

/// Where the checkpoints of a relay are.
pub(super) struct Checkpoints {
    bucket: Arc<dyn ObjectStore>,
    folder: String,
}

/// What became of a checkpoint.
pub(super) enum Saved {
    /// It is there.
    Yes(Checkpoint),
    /// A relay with a higher fence has written.
    Overtaken,
}

/// The checkpoint of the relay of this name; none before its first.
///
/// # Errors
/// When the bucket gives no answer.
pub async fn read_checkpoint(
    bucket: &Arc<dyn ObjectStore>,
    relay: &str,
) -> Result<Option<Checkpoint>, LogError> {
    Checkpoints::new(bucket.clone(), relay).load().await
}

impl Checkpoints {
    pub(super) fn new(bucket: Arc<dyn ObjectStore>, relay: &str) -> Self {
        Self { bucket, folder: format!("relay/{relay}") }
    }

    /// The last checkpoint that is whole.
    pub(super) async fn load(&self) -> Result<Option<Checkpoint>, LogError> {
        for number in self.numbers().await?.into_iter().rev() {
            // One that can't be read is passed over: an older one only means more duplicates.
            match self.read(number).await {
                Ok(Some(checkpoint)) => return Ok(Some(checkpoint)),
                Ok(None) | Err(LogError::Broken(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Writes a checkpoint behind the last one.
    pub(super) async fn save(&self, mut checkpoint: Checkpoint) -> Result<Saved, LogError> {
        checkpoint.format = FORMAT;
        loop {
            let body = sealed(&checkpoint);
            let path = self.path(checkpoint.number);
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            match self.bucket.put_opts(&path, PutPayload::from(body), options).await {
                Ok(_) => {
                    self.drop_old(checkpoint.number).await;
                    return Ok(Saved::Yes(checkpoint));
                }
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
                Err(error) => return Err(unavailable(&error)),
            }
            match self.read(checkpoint.number).await {
                // Our own write, whose answer was lost.
                Ok(Some(there)) if there == checkpoint => return Ok(Saved::Yes(checkpoint)),
                Ok(Some(there)) if there.fence > checkpoint.fence => return Ok(Saved::Overtaken),
                Ok(_) | Err(LogError::Broken(_)) => checkpoint.number += 1,
                Err(error) => return Err(error),
            }
        }
    }

    async fn read(&self, number: u64) -> Result<Option<Checkpoint>, LogError> {
        let found = match self.bucket.get(&self.path(number)).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(unavailable(&error)),
        };
        let body = found.bytes().await.map_err(|error| unavailable(&error))?;
        match opened(&body) {
            Some(checkpoint) if checkpoint.number == number => Ok(Some(checkpoint)),
            _ => Err(LogError::Broken(format!("checkpoint {number} of the relay is damaged"))),
        }
    }

    async fn numbers(&self) -> Result<Vec<u64>, LogError> {
        let folder = Path::from(self.folder.as_str());
        let found = self.bucket.list(Some(&folder)).try_collect::<Vec<_>>().await;
        let found = found.map_err(|error| unavailable(&error))?;
        let numbers = found.iter().filter_map(|object| object.location.filename()?.parse().ok());
        let mut numbers: Vec<u64> = numbers.collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    async fn drop_old(&self, number: u64) {
        // Only the number before the kept ones is looked for: others were dropped before it.
        if let Some(old) = number.checked_sub(KEPT as u64) {
            // What can't be deleted is passed over when checkpoints are read.
            let _ = self.bucket.delete(&self.path(old)).await;
        }
    }

    fn path(&self, number: u64) -> Path {
        Path::from(format!("{}/{number:020}", self.folder))
    }
}

/// A checkpoint as it is stored: a line with its hash, then JSON.
fn sealed(checkpoint: &Checkpoint) -> Vec<u8> {
    // Strings and numbers can always be written.
    let body = serde_json::to_vec(checkpoint).unwrap_or_default();
    let mut bytes = hash(&body).into_bytes();
    bytes.push(b'\n');
    bytes.extend_from_slice(&body);
    bytes
}

fn opened(bytes: &[u8]) -> Option<Checkpoint> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (said, body) = (&bytes[..end], &bytes[end + 1..]);
    if said != hash(body).as_bytes() {
        return None;
    }
    serde_json::from_slice(body).ok().filter(|checkpoint: &Checkpoint| checkpoint.format == FORMAT)
}

fn hash(body: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(body).iter().fold(String::new(), |mut text, byte| {
        // Writing into a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unavailable(error: &Error) -> LogError {
    LogError::Unavailable(format!("the bucket of the event store: {error}"))
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    fn at(number: u64, fence: u64, segment: u64) -> Checkpoint {
        Checkpoint { number, fence, segment, ..Checkpoint::default() }
    }

    #[tokio::test]
    async fn c07_a_checkpoint_is_fenced_and_the_last_whole_one_counts() {
        let bucket: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let checkpoints = Checkpoints::new(bucket.clone(), "relay");
        assert_eq!(checkpoints.load().await.unwrap(), None);
        for number in 1..=4 {
            let saved = checkpoints.save(at(number, 5, number)).await.unwrap();
            assert!(matches!(saved, Saved::Yes(_)));
        }
        assert_eq!(checkpoints.numbers().await.unwrap(), [3, 4], "older ones are dropped");
        // Another relay has taken over, and writes behind what an overtaken one wrote last.
        let Saved::Yes(newer) = checkpoints.save(at(4, 6, 4)).await.unwrap() else { panic!() };
        assert_eq!(newer.number, 5);
        assert!(matches!(checkpoints.save(at(5, 5, 9)).await.unwrap(), Saved::Overtaken));
        assert_eq!(checkpoints.load().await.unwrap().unwrap().place().segment, 4);
        let path = checkpoints.path(5);
        bucket.put(&path, PutPayload::from_static(b"damaged")).await.unwrap();
        assert_eq!(checkpoints.load().await.unwrap().unwrap().number, 4);
    }

    #[tokio::test]
    async fn i16_a_write_whose_answer_was_lost_is_recognised() {
        let bucket: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let checkpoints = Checkpoints::new(bucket, "relay");
        checkpoints.save(at(1, 5, 1)).await.unwrap();
        let Saved::Yes(again) = checkpoints.save(at(1, 5, 1)).await.unwrap() else { panic!() };
        assert_eq!(again.number, 1);
    }
}
