//! The business service in the demo: how it is set up, and what its users do.

mod settings;
mod traffic;

use onceward_reference::business::Business;

use super::{Offer, Setup};
use crate::failure::Failure;
use traffic::Traffic;

/// The service.
pub(super) fn offer(setup: &Setup) -> Result<Offer, Failure> {
    let options = settings::read(std::env::vars_os(), setup.principals.clone())?;
    let business =
        Business::new(setup.engine.clone(), options).map_err(|error| settings::refused(&error))?;
    let traffic = Traffic::new(&business, &setup.principals, setup.tally.clone());
    Ok(Offer {
        name: "business",
        router: business.router(),
        doors: vec![business.door().clone()],
        worker: Some(business.worker()),
        drain: Box::pin(std::future::ready(())),
        warnings: Vec::new(),
        views: None,
        broken: None,
        traffic: Box::pin(traffic.run()),
        welcome: include_str!("welcome.txt"),
        counts: None,
        audit_days: None,
    })
}
