//! What `onceward report` takes.

use clap::Args;

use super::{Asked, Question};
use crate::times::Moment;

/// Which report, of whom, since when.
#[derive(Debug, Args)]
pub(crate) struct Report {
    /// What is asked.
    pub(crate) question: Question,
    /// Only this tenant's. Default: all.
    #[arg(long, value_name = "TENANT", env = "ONCEWARD_TENANT")]
    pub(crate) tenant: Option<String>,
    /// Only what began since then: an instant, a day, or a while ago. `retention` is about all that
    /// is there. Default: 24h.
    #[arg(long, value_name = "TIME", env = "ONCEWARD_SINCE", default_value = "24h")]
    pub(crate) since: Moment,
}

impl Report {
    /// The question as it is answered.
    pub(crate) fn asked(&self) -> Asked {
        Asked { question: self.question, tenant: self.tenant.clone(), since: self.since }
    }
}
