//! Waiting for keys that another process runs: one connection that listens, one bell per key.
//!
//! A key that is waited for is marked as wanted, once for all who wait in this process; the group
//! that changes it next rings (`apply_group`). A completion between the caller's look and the mark
//! is found by looking once more behind the mark. While the connection is down everyone is told to
//! look; the engine polls besides, so a bell that is lost costs time only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::{poll_fn, select_all};
use onceward_core::key::Key;
use tokio::sync::{Notify, mpsc, watch};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, NoTls};

use super::super::StoreError;
use super::failure::{Failure, describe};
use super::locks;
use super::open::{BACKOFF_FIRST, BACKOFF_MAX, Role, Session, Target, locked};
use super::rows::{self, kind_code};
use super::sql::Sql;

/// Pause before a key is looked at again that a group was just at.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Keys that may wait to be marked; beyond, the engine's polling has to do.
const ASKED_MAX: usize = 10_000;
/// Bells after which those that nobody waits for are dropped.
const FORGET_EVERY: usize = 1_024;

/// Everyone in this process who waits for a key of the store.
pub(super) struct Watch {
    schema: Arc<str>,
    bells: Arc<Bells>,
    ask: Mutex<Option<mpsc::Sender<Asked>>>,
    closed: watch::Sender<bool>,
}

impl Watch {
    /// Starts listening, in a task that ends with this value.
    pub(super) fn start(target: Target) -> Self {
        let schema: Arc<str> = target.options.schema.as_str().into();
        let bells = Arc::new(Mutex::new(HashMap::new()));
        let (ask, asked) = mpsc::channel(ASKED_MAX);
        tokio::spawn(listen(target, schema.clone(), bells.clone(), asked));
        let ask = Mutex::new(Some(ask));
        Self { schema, bells, ask, closed: watch::Sender::new(false) }
    }

    /// Ends every wait, and the task that listens.
    pub(super) fn close(&self) {
        drop(locked(&self.ask).take());
        self.closed.send_replace(true);
    }

    /// Resolves when one of the keys may have changed.
    pub(super) async fn wait(&self, keys: &[Key]) -> Result<(), StoreError> {
        let mut closed = self.closed.subscribe();
        let gone = || StoreError::NotApplied("the postgres store is closed".into());
        let mut waits = Vec::with_capacity(keys.len());
        for key in keys {
            let lock = locks::of_key(&self.schema, key);
            let (bell, first) = self.bell(lock);
            let mut rung = Box::pin(bell.clone().notified_owned());
            // Registered before the mark, so that the bell can't ring in between.
            rung.as_mut().enable();
            let ask = locked(&self.ask).clone().ok_or_else(gone)?;
            if first {
                // When too many ask at once, the engine's polling has to do.
                let _ = ask.try_send((key.clone(), bell.clone()));
            }
            waits.push((rung, bell));
        }
        let rung = async {
            match waits.is_empty() {
                true => std::future::pending().await,
                false => select_all(waits.iter_mut().map(|(rung, _)| rung)).await,
            }
        };
        tokio::select! {
            _ = rung => Ok(()),
            _ = closed.wait_for(|closed| *closed) => Err(gone()),
        }
    }

    /// The bell of a lock, and whether nobody else waits for it.
    fn bell(&self, lock: i64) -> (Arc<Notify>, bool) {
        let mut bells = locked(&self.bells);
        if let Some(bell) = bells.get(&lock).and_then(Weak::upgrade) {
            return (bell, false);
        }
        if bells.len().is_multiple_of(FORGET_EVERY) {
            bells.retain(|_, bell| bell.strong_count() > 0);
        }
        let bell = Arc::new(Notify::new());
        bells.insert(lock, Arc::downgrade(&bell));
        (bell, true)
    }
}

type Bells = Mutex<HashMap<i64, Weak<Notify>>>;
/// A key to be marked, and its bell.
type Asked = (Key, Arc<Notify>);

/// Listens until nobody asks any more; connects anew when the connection ends.
async fn listen(
    target: Target,
    schema: Arc<str>,
    bells: Arc<Bells>,
    mut asked: mpsc::Receiver<Asked>,
) {
    let mut pause = BACKOFF_FIRST;
    loop {
        if let Ok((session, mut heard)) = connect(&target).await {
            pause = BACKOFF_FIRST;
            // Bells that rang while nobody listened are lost.
            ring_all(&bells);
            loop {
                tokio::select! {
                    payload = heard.recv() => match payload {
                        Some(payload) => ring(&bells, &payload),
                        None => break,
                    },
                    next = asked.recv() => match next {
                        None => return,
                        Some((key, bell)) => {
                            let mut more = vec![(key, bell)];
                            while let Ok(next) = asked.try_recv() {
                                more.push(next);
                            }
                            if mark(&session, &schema, &more).await.is_err() {
                                break;
                            }
                        }
                    },
                }
            }
            ring_all(&bells);
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(BACKOFF_MAX),
            // Not marked: whoever waits has the engine's polling, and a bell with the next
            // connection.
            next = asked.recv() => if next.is_none() {
                return;
            },
        }
    }
}

async fn connect(
    target: &Target,
) -> Result<(Arc<Session>, mpsc::UnboundedReceiver<String>), StoreError> {
    let limit = target.options.connect_timeout();
    let connected = tokio::time::timeout(limit, target.config.connect(NoTls)).await;
    let silent = |_| StoreError::NotApplied(format!("{} does not answer", target.shown()));
    let connected = connected.map_err(silent)?;
    let (client, mut connection) = connected.map_err(|error| target.unreachable(&error))?;
    let (tell, heard) = mpsc::unbounded_channel();
    let driver = tokio::spawn(async move {
        // Ends with the connection; then nobody is told any more, which says so.
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(bell) = message
                && tell.send(bell.payload().into()).is_err()
            {
                return;
            }
        }
    });
    let session = Session::ready(client, driver, target, Role::Listener).await?;
    let listen = format!("LISTEN \"{}\"", target.options.schema);
    let listening = session.flight(session.client.batch_execute(&listen)).await;
    match listening {
        Ok(Ok(())) => Ok((Arc::new(session), heard)),
        Ok(Err(error)) => Err(target.unreachable(&error)),
        Err(failure) => Err(failure.into_store_error()),
    }
}

/// Rings for the locks that a group names, or for all where it names none.
fn ring(bells: &Bells, payload: &str) {
    if payload.is_empty() {
        return ring_all(bells);
    }
    let mut bells = locked(bells);
    for lock in payload.split(' ').filter_map(|lock| lock.parse::<i64>().ok()) {
        if let Some(bell) = bells.remove(&lock).and_then(|bell| bell.upgrade()) {
            bell.notify_waiters();
        }
    }
}

fn ring_all(bells: &Bells) {
    for bell in std::mem::take(&mut *locked(bells)).into_values().filter_map(|bell| bell.upgrade())
    {
        bell.notify_waiters();
    }
}

/// Marks keys as wanted, and looks behind the mark: what changed before it rings at once.
async fn mark(session: &Arc<Session>, schema: &str, asked: &[Asked]) -> Result<(), StoreError> {
    let of_key = |(key, _): &Asked| locks::of_key(schema, key);
    let wanted: Vec<i64> = asked.iter().map(of_key).collect();
    let values: [&(dyn ToSql + Sync); 1] = [&wanted];
    let want = session.client.query(session.prepared(Sql::Want), &values);
    let done = session.flight(want).await.map_err(Failure::into_store_error)?;
    done.map_err(|error| StoreError::NotApplied(describe(&error)))?;
    for ((key, bell), lock) in asked.iter().zip(wanted) {
        if !look(session, key, lock, bell).await? {
            // A group is at it that may not have seen the mark: look again when it has ended.
            let (session, key, bell) = (session.clone(), key.clone(), bell.clone());
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(LOOK_AGAIN).await;
                    // Nobody waits any more, or what is lost is found by polling.
                    if Arc::strong_count(&bell) == 1
                        || look(&session, &key, lock, &bell).await.unwrap_or(true)
                    {
                        return;
                    }
                }
            });
        }
    }
    Ok(())
}

/// Rings when the key is not running any more. `false` when that can't be told yet.
async fn look(session: &Session, key: &Key, lock: i64, bell: &Notify) -> Result<bool, StoreError> {
    let (tenant, kind, name) = (key.tenant_column(), kind_code(key.kind()), key.name_column());
    let statement = session.prepared(Sql::WantedState);
    let values: [&(dyn ToSql + Sync); 4] = [&tenant, &kind, &name, &lock];
    let look = session.client.query_one(statement, &values);
    let row = session.flight(look).await.map_err(Failure::into_store_error)?;
    let row = row.map_err(|error| StoreError::NotApplied(describe(&error)))?;
    match rows::get::<i16>(&row, 0)? {
        0 => {
            bell.notify_waiters();
            Ok(true)
        }
        1 => Ok(true),
        _ => Ok(false),
    }
}
