//! The planning service in the demo: how it is set up, and what its users do.

mod traffic;

use onceward_reference::planning::{Options, Planning};

use super::{Offer, Setup};
use crate::failure::Failure;
use traffic::Traffic;

/// Resources that the response cache keeps, on a store that this process has to itself.
const CACHED_MAX: usize = 10_000;

/// The service.
pub(super) async fn offer(setup: &Setup) -> Result<Offer, Failure> {
    let cached_max = if setup.alone { CACHED_MAX } else { 0 };
    let options = Options { principals: setup.principals.clone(), cached_max };
    let planning = Planning::open(setup.engine.clone(), options).await?;
    let traffic = Traffic::new(&planning, &setup.principals, setup.tally.clone());
    Ok(Offer {
        name: "planning",
        router: planning.router(),
        doors: vec![planning.door().clone()],
        worker: Some(planning.worker()),
        drain: Box::pin(async {}),
        warnings: Vec::new(),
        views: None,
        broken: None,
        traffic: Box::pin(traffic.run()),
        welcome: include_str!("welcome.txt"),
        counts: None,
        audit_days: None,
    })
}
