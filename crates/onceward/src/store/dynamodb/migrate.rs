//! Making the table: its keys, its indexes, the attribute that DynamoDB collects garbage by.
//!
//! Rule: running it again does no harm, at once or later. The version is written last, so that a
//! table that was left half-made is not opened.

use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, IndexStatus, KeySchemaElement, KeyType,
    Projection, ProjectionType, ScalarAttributeType, TableDescription, TableStatus,
    TimeToLiveSpecification, TimeToLiveStatus,
};

use super::super::StoreError;
use super::failure::{Failure, again, sort};
use super::names::{Place, SCHEMA};
use super::ops::{Op, incomplete, number};
use super::rows;
use super::table::Table;

/// The version of the table that this program makes and needs.
pub(super) const VERSION: usize = 2;
/// How long DynamoDB may take to make a table and its indexes.
const MADE_WITHIN: Duration = Duration::from_secs(600);
/// How often it is asked meanwhile.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// The indexes: due jobs and sweepable records without their bodies, audit entries as a whole.
const INDEXES: [(&str, bool); 4] =
    [("due", false), ("sweep", false), ("audit", true), ("user", true)];

/// The version of the table; none when it was never made by us.
pub(super) async fn version(table: &Table) -> Result<Option<usize>, Failure> {
    let Some(item) = table.get(&Place::new(SCHEMA.0, SCHEMA.1)).await? else { return Ok(None) };
    Ok(rows::number(&item, "version")?.map(|version| version.try_into().unwrap_or(usize::MAX)))
}

/// Makes the table if it is not there, and brings it to this program's version.
pub(super) async fn migrate(table: &Table) -> Result<(), StoreError> {
    let failed = |failure: Failure| match failure.of_read() {
        StoreError::NotApplied(why) => {
            StoreError::Open(format!("can't make the table {}: {why}", table.name))
        }
        error => error,
    };
    create(table).await.map_err(failed)?;
    wait(table).await?;
    collect_garbage(table).await.map_err(failed)?;
    if version(table).await.map_err(failed)?.is_none_or(|version| version < VERSION) {
        let item = [("version".to_string(), number(VERSION as u64))].into();
        let op = Op::put(Place::new(SCHEMA.0, SCHEMA.1), item);
        again(|| table.write(&op)).await.map_err(failed)?;
    }
    Ok(())
}

async fn create(table: &Table) -> Result<(), Failure> {
    let mut attributes = vec![attribute("PK")?, attribute("SK")?];
    let mut indexes = Vec::new();
    for (name, whole) in INDEXES {
        let (pk, sk) = (format!("{name}_pk"), format!("{name}_sk"));
        attributes.extend([attribute(&pk)?, attribute(&sk)?]);
        let projection = match whole {
            true => Projection::builder().projection_type(ProjectionType::All),
            false => Projection::builder()
                .projection_type(ProjectionType::Include)
                .set_non_key_attributes(Some(projected())),
        };
        let index = GlobalSecondaryIndex::builder()
            .index_name(name)
            .set_key_schema(Some(schema(&pk, &sk)?))
            .projection(projection.build());
        indexes.push(index.build().map_err(incomplete)?);
    }
    let request = table
        .client
        .create_table()
        .table_name(&table.name)
        .billing_mode(BillingMode::PayPerRequest)
        .set_attribute_definitions(Some(attributes))
        .set_key_schema(Some(schema("PK", "SK")?))
        .set_global_secondary_indexes(Some(indexes));
    match request.send().await {
        Ok(_) => Ok(()),
        Err(error) => match error.as_service_error() {
            // It is there, or somebody else is at it: what it is like is seen next.
            Some(answer) if answer.is_resource_in_use_exception() => Ok(()),
            _ => Err(sort(error)),
        },
    }
}

/// What an index holds of a record: all but its keys, which it holds anyway, and its bodies.
fn projected() -> Vec<String> {
    let keys = ["PK", "SK", "gone"];
    rows::RECORD.iter().filter(|name| !keys.contains(name)).map(ToString::to_string).collect()
}

fn attribute(name: &str) -> Result<AttributeDefinition, Failure> {
    let attribute = AttributeDefinition::builder().attribute_name(name);
    attribute.attribute_type(ScalarAttributeType::S).build().map_err(incomplete)
}

fn schema(pk: &str, sk: &str) -> Result<Vec<KeySchemaElement>, Failure> {
    let element = |name: &str, role: KeyType| {
        KeySchemaElement::builder().attribute_name(name).key_type(role).build()
    };
    let pair = [element(pk, KeyType::Hash), element(sk, KeyType::Range)];
    pair.into_iter().collect::<Result<_, _>>().map_err(incomplete)
}

/// Waits until the table and its indexes are there, and sees whether they are the right ones.
async fn wait(table: &Table) -> Result<(), StoreError> {
    let until = Instant::now() + MADE_WITHIN;
    let why = loop {
        let request = || async {
            let request = table.client.describe_table().table_name(&table.name);
            request.send().await.map_err(sort)
        };
        let why = match again(request).await {
            Ok(answer) => match answer.table.as_ref().map(missing) {
                Some(Ok(None)) => return Ok(()),
                Some(Ok(Some(why))) => why,
                Some(Err(error)) => return Err(error),
                None => "DynamoDB does not describe it".to_string(),
            },
            // A table that is being made may not be known everywhere yet.
            Err(Failure::Store(StoreError::Schema(why))) => why,
            Err(failure) => return Err(failure.of_read()),
        };
        if Instant::now() > until {
            break why;
        }
        tokio::time::sleep(ASK_EVERY).await;
    };
    Err(StoreError::Open(format!("the table {} is not ready: {why}", table.name)))
}

/// What still has to come; an error when it is another table than ours.
fn missing(there: &TableDescription) -> Result<Option<String>, StoreError> {
    let keys: Vec<&str> = there.key_schema().iter().map(KeySchemaElement::attribute_name).collect();
    if keys != ["PK", "SK"] {
        let message = format!("the table's keys are {keys:?}, not PK and SK; name another table");
        return Err(StoreError::Schema(message));
    }
    if there.table_status() != Some(&TableStatus::Active) {
        return Ok(Some(format!("it is {:?}", there.table_status())));
    }
    for (name, _) in INDEXES {
        let index = there.global_secondary_indexes().iter().find(|i| i.index_name() == Some(name));
        match index.map(|index| index.index_status()) {
            None => {
                let message = format!("the table has no index {name}; name another table");
                return Err(StoreError::Schema(message));
            }
            // Some servers leave the status out where there is nothing to wait for.
            Some(None | Some(IndexStatus::Active)) => {}
            Some(status) => return Ok(Some(format!("its index {name} is {status:?}"))),
        }
    }
    Ok(None)
}

/// Lets DynamoDB remove items whose `ttl` is past.
async fn collect_garbage(table: &Table) -> Result<(), Failure> {
    let request = table.client.describe_time_to_live().table_name(&table.name);
    let there = request.send().await.map_err(sort)?.time_to_live_description;
    let status = there.and_then(|there| there.time_to_live_status);
    if matches!(status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)) {
        return Ok(());
    }
    let ttl = TimeToLiveSpecification::builder().attribute_name("ttl").enabled(true);
    let request = table.client.update_time_to_live().table_name(&table.name);
    let request = request.time_to_live_specification(ttl.build().map_err(incomplete)?);
    request.send().await.map(drop).map_err(sort)
}
