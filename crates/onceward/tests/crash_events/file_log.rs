//! A broker's log as a plain file: what is published twice is there twice.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use onceward::events::{Event, Place};
use onceward::handlers::{read_event, write_event};
use onceward::relay::{Log, LogFuture, Sink};

#[derive(Clone)]
pub(crate) struct FileLog(pub(crate) PathBuf);

impl FileLog {
    pub(crate) fn all(&self) -> Vec<Event> {
        let bytes = std::fs::read(&self.0).unwrap_or_default();
        // A line that was cut by the kill was never acknowledged.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines = bytes[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.filter_map(read_event).collect()
    }
}

impl Sink for FileLog {
    fn publish<'a>(&'a self, _: u64, events: &'a [(Place, Event)]) -> LogFuture<'a, Vec<bool>> {
        Box::pin(async move {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(&self.0);
            let mut file = file.unwrap();
            for (_, event) in events {
                let mut line = write_event(event);
                line.push(b'\n');
                file.write_all(&line).unwrap();
            }
            file.sync_data().unwrap();
            Ok(vec![true; events.len()])
        })
    }
}

impl Log for FileLog {
    fn read_after(&self, after: Place, limit: usize) -> LogFuture<'_, Vec<(Place, Event)>> {
        Box::pin(async move {
            let events = self.all().into_iter().enumerate();
            let places =
                events.map(|(at, event)| (Place { segment: at as u64 + 1, offset: 0 }, event));
            Ok(places.filter(|(place, _)| *place > after).take(limit).collect())
        })
    }

    fn end(&self) -> LogFuture<'_, Place> {
        Box::pin(async move { Ok(Place { segment: self.all().len() as u64, offset: 0 }) })
    }

    fn wait_after(&self, after: Place) -> LogFuture<'_, ()> {
        Box::pin(async move {
            while (self.all().len() as u64) <= after.segment {
                // sleeps because a file rings for nobody
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        })
    }
}
