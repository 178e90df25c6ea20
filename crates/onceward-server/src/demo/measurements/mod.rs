//! The measurements service in the demo: how it is set up, and what its users do.

pub(crate) mod environment;
mod metrics;
mod traffic;

use std::sync::Arc;

use onceward_reference::measurements::{Measurements, Observer, Options};
use prometheus_client::registry::Registry;

use super::{Offer, Setup};
use crate::failure::Failure;
use crate::open::StoreUrl;
use environment::Environment;
use metrics::Counted;
use traffic::Traffic;

/// The service.
pub(super) fn offer(setup: &Setup) -> Result<Offer, Failure> {
    let Environment { settings, audit_days } = Environment::read()?;
    let counted = Arc::new(Counted::default());
    let hears = counted.clone();
    let observer = Observer(Arc::new(move |happened| hears.note(happened)));
    let options = Options {
        principals: setup.principals.clone(),
        settings,
        observer: Some(observer),
        ..Options::default()
    };
    let measurements = Measurements::open(setup.engine.clone(), options)?;
    let traffic = Traffic::new(&measurements, &setup.principals, setup.tally.clone());
    let file = if let StoreUrl::Sqlite(path) = &setup.url { Some(path.clone()) } else { None };
    Ok(Offer {
        name: "measurements",
        router: measurements.router(),
        doors: vec![measurements.door().clone()],
        worker: Some(measurements.worker()),
        drain: Box::pin(std::future::ready(())),
        warnings: Vec::new(),
        views: None,
        broken: None,
        traffic: Box::pin(traffic.run()),
        welcome: include_str!("welcome.txt"),
        counts: Some(Box::new(move |registry: &mut Registry| {
            counted.register(registry, file.clone());
        })),
        audit_days: Some(audit_days),
    })
}
