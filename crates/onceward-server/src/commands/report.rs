//! `onceward report`: asks the store and prints the answer.

use onceward::engine::Engine;

use super::reading;
use super::spinner::Spinner;
use crate::failure::Failure;
use crate::open::StoreUrl;
use crate::output::Out;
use crate::report::args::Report;
use crate::report::{answer, print};

/// Answers one of the three questions.
pub(crate) async fn report(url: &StoreUrl, args: &Report, out: &Out) -> Result<(), Failure> {
    let mut bar = Spinner::new(out);
    let result = reading(url, |store| {
        let bar = &mut bar;
        async move {
            let engine = Engine::new(store);
            let told = |seen: u64| bar.show(|| format!("{seen} looked at"));
            Ok(answer(&engine, &args.asked(), told).await?)
        }
    })
    .await;
    bar.end();
    print(&result?, &url.shown(), out)
}
