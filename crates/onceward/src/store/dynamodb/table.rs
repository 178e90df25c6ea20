//! The requests that the store sends, each in one place, bounded in number and in time.
//!
//! Rule: the client's own retries are off. A retry that the store does not know of would hide which
//! try was left without an answer; what may be tried again is decided by `failure.rs`. Reads are
//! strongly consistent wherever DynamoDB can: only its indexes trail behind.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Builder, Config};
use aws_sdk_dynamodb::types::{AttributeValue, Get, ReturnValue, TransactGetItem};
use aws_smithy_async::time::StaticTimeSource;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::super::StoreError;
use super::announce::Announced;
use super::dates::Dates;
use super::failure::{Failure, again, sort};
use super::names::Place;
use super::ops::{Item, Op, incomplete, key_of, text};
use super::stamps::Learnt;

/// Items that one transaction takes: DynamoDB's bound.
pub(super) const TRANSACTION_MAX: usize = 100;
/// Requests under way at once: what the connections to one endpoint carry well.
const REQUESTS_MAX: usize = 64;

/// A table and how to talk to it.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) client: Client,
    pub(super) name: String,
    pub(super) dates: Arc<Dates>,
    /// What this process has put on a list.
    pub(super) announced: Announced,
    /// Whose counters it has looked at.
    pub(super) learnt: Learnt,
    room: Semaphore,
}

/// What to look for in a partition.
#[derive(Debug, Clone, Default)]
pub(super) struct Query {
    /// An index, or the table itself.
    pub(super) index: Option<&'static str>,
    pub(super) partition: String,
    pub(super) range: Range,
    /// What items must fulfil beside that, with the names and values that it uses.
    pub(super) filter: Option<String>,
    pub(super) names: HashMap<String, String>,
    pub(super) values: HashMap<String, AttributeValue>,
    /// Most items that are looked at in one request.
    pub(super) limit: usize,
    /// Attributes that are wanted; all when there are none.
    pub(super) wanted: &'static [&'static str],
}

/// A range of sort keys, both ends included.
#[derive(Debug, Clone, Default)]
pub(super) enum Range {
    /// All of them.
    #[default]
    All,
    /// From here on.
    From(String),
    /// From here to there.
    Between(String, String),
}

/// What changes of the client's settings for a request that is signed as of an instant.
fn as_of(signed: Option<SystemTime>) -> Builder {
    match signed {
        Some(signed) => Config::builder().time_source(StaticTimeSource::new(signed)),
        None => Config::builder(),
    }
}

/// What a request found, and where the next one goes on.
pub(super) type Found = (Vec<Item>, Option<Item>);

impl Table {
    pub(super) fn new(client: Client, name: String, dates: Arc<Dates>) -> Self {
        let room = Semaphore::new(REQUESTS_MAX);
        let (announced, learnt) = (Announced::default(), Learnt::default());
        Self { client, name, dates, announced, learnt, room }
    }

    async fn enter(&self) -> Result<SemaphorePermit<'_>, Failure> {
        let closed = || Failure::Store(StoreError::NotApplied("the store is closed".into()));
        self.room.acquire().await.map_err(|_| closed())
    }

    /// Looks one item up.
    pub(super) async fn get(&self, place: &Place) -> Result<Option<Item>, Failure> {
        again(|| async {
            let _room = self.enter().await?;
            let request = self.client.get_item().table_name(&self.name).consistent_read(true);
            let answer = request.set_key(Some(key_of(place))).send().await.map_err(sort)?;
            Ok(answer.item)
        })
        .await
    }

    /// Looks items up, up to a hundred of them at one instant.
    pub(super) async fn get_all(&self, places: &[Place]) -> Result<HashMap<Place, Item>, Failure> {
        let mut found = HashMap::new();
        let mut left: Vec<&[Place]> = places.chunks(TRANSACTION_MAX).rev().collect();
        while let Some(chunk) = left.pop() {
            let items = match chunk {
                [] => continue,
                [one] => Ok(vec![self.get(one).await?]),
                many => again(|| self.get_together(many)).await,
            };
            match items {
                Ok(items) => {
                    let there = chunk.iter().zip(items);
                    found.extend(there.filter_map(|(place, item)| Some((place.clone(), item?))));
                }
                // More than a transaction may carry: then in two, at an instant each.
                Err(Failure::Store(StoreError::NotApplied(why)))
                    if why.contains("size") && chunk.len() > 1 =>
                {
                    let (first, second) = chunk.split_at(chunk.len() / 2);
                    left.extend([second, first]);
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(found)
    }

    async fn get_together(&self, places: &[Place]) -> Result<Vec<Option<Item>>, Failure> {
        let get = |place: &Place| {
            let get = Get::builder().table_name(&self.name).set_key(Some(key_of(place)));
            let get = get.build().map_err(incomplete)?;
            Ok::<_, Failure>(TransactGetItem::builder().get(get).build())
        };
        let gets = places.iter().map(get).collect::<Result<Vec<_>, _>>()?;
        let _room = self.enter().await?;
        let request = self.client.transact_get_items().set_transact_items(Some(gets));
        let answer = request.send().await.map_err(sort)?;
        let items: Vec<_> = answer.responses.unwrap_or_default();
        if items.len() != places.len() {
            return Err(Failure::Lost("an answer for other items than were asked for".into()));
        }
        Ok(items.into_iter().map(|response| response.item).collect())
    }

    /// Writes one item. Not tried again: that is for whoever knows what a repetition would do.
    pub(super) async fn write(&self, op: &Op) -> Result<(), Failure> {
        self.write_signed(op, None).await
    }

    /// As [`Table::write`], signed as of an instant: DynamoDB takes no request that was signed long
    /// ago, so what is drawn or read before then is not used much later, whatever held us up.
    pub(super) async fn write_signed(
        &self,
        op: &Op,
        signed: Option<SystemTime>,
    ) -> Result<(), Failure> {
        let _room = self.enter().await?;
        if let Some(whole) = op.whole() {
            let request = self.client.put_item().table_name(&self.name);
            let request = request
                .set_item(Some(whole.clone()))
                .set_condition_expression(op.condition())
                .set_expression_attribute_names(op.names())
                .set_expression_attribute_values(op.values());
            let request = request.customize().config_override(as_of(signed));
            return request.send().await.map(drop).map_err(sort);
        }
        let request = self.client.update_item().table_name(&self.name);
        let request = request
            .set_key(Some(key_of(&op.place)))
            .update_expression(op.update())
            .set_condition_expression(op.condition())
            .set_expression_attribute_names(op.names())
            .set_expression_attribute_values(op.values());
        let request = request.customize().config_override(as_of(signed));
        request.send().await.map(drop).map_err(sort)
    }

    /// Adds to a number of an item and gives it back.
    pub(super) async fn add(&self, place: &Place, name: &str, more: u64) -> Result<u64, Failure> {
        let _room = self.enter().await?;
        let request = self.client.update_item().table_name(&self.name);
        let request = request
            .set_key(Some(key_of(place)))
            .update_expression("ADD #n :n")
            .expression_attribute_names("#n", name)
            .expression_attribute_values(":n", super::ops::number(more))
            .return_values(ReturnValue::UpdatedNew);
        let answer = request.send().await.map_err(sort)?;
        let new =
            answer.attributes.as_ref().and_then(|item| item.get(name)?.as_n().ok()?.parse().ok());
        new.ok_or_else(|| Failure::corrupt("a counter of stamps is not a number"))
    }

    /// Writes items together, under a name that lets DynamoDB know the request again for ten
    /// minutes. The batch's own token is what tells after that.
    pub(super) async fn write_together(
        &self,
        ops: &[Op],
        name: &str,
        signed: Option<SystemTime>,
    ) -> Result<(), Failure> {
        let items = ops.iter().map(|op| op.in_transaction(&self.name));
        let items = items.collect::<Result<Vec<_>, _>>()?;
        let _room = self.enter().await?;
        let request = self.client.transact_write_items().set_transact_items(Some(items));
        let request = request.client_request_token(name).customize();
        request.config_override(as_of(signed)).send().await.map(drop).map_err(sort)
    }

    /// Removes an item that nobody refers to.
    pub(super) async fn drop_item(&self, place: &Place) -> Result<(), Failure> {
        again(|| async {
            let _room = self.enter().await?;
            let request = self.client.delete_item().table_name(&self.name);
            request.set_key(Some(key_of(place))).send().await.map(drop).map_err(sort)
        })
        .await
    }

    /// One page of a query.
    pub(super) async fn query(&self, query: &Query, from: Option<Item>) -> Result<Found, Failure> {
        again(|| self.ask(query, from.clone())).await
    }

    async fn ask(&self, query: &Query, from: Option<Item>) -> Result<Found, Failure> {
        let (pk, sk) = match query.index {
            None => ("PK".to_string(), "SK".to_string()),
            Some(index) => (format!("{index}_pk"), format!("{index}_sk")),
        };
        let (mut names, mut values) = (query.names.clone(), query.values.clone());
        names.insert("#pk".into(), pk);
        values.insert(":pk".into(), text(&query.partition));
        let condition = match &query.range {
            Range::All => "#pk = :pk",
            Range::From(low) => {
                values.insert(":low".into(), text(low));
                "#pk = :pk AND #sk >= :low"
            }
            Range::Between(low, high) => {
                values.insert(":low".into(), text(low));
                values.insert(":high".into(), text(high));
                "#pk = :pk AND #sk BETWEEN :low AND :high"
            }
        };
        if !matches!(query.range, Range::All) {
            names.insert("#sk".into(), sk);
        }
        let mut wanted = Vec::new();
        for name in query.wanted {
            names.insert(format!("#{name}"), (*name).to_string());
            wanted.push(format!("#{name}"));
        }
        let _room = self.enter().await?;
        let request = self.client.query().table_name(&self.name);
        let request = request
            .set_index_name(query.index.map(Into::into))
            .key_condition_expression(condition)
            .set_filter_expression(query.filter.clone())
            .set_projection_expression((!wanted.is_empty()).then(|| wanted.join(", ")))
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values))
            .consistent_read(query.index.is_none())
            .limit(i32::try_from(query.limit.max(1)).unwrap_or(i32::MAX))
            .set_exclusive_start_key(from);
        let answer = request.send().await.map_err(sort)?;
        let next = answer.last_evaluated_key.filter(|key| !key.is_empty());
        Ok((answer.items.unwrap_or_default(), next))
    }
}
