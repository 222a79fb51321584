//! Fencing: only the newest scheduler leader may send requests.
//!
//! A scheduler that was paused while it led may resume after another took over, and still believe that it leads. Its
//! requests carry its term and are refused. The newest term is saved, so that a restarted agent refuses the same
//! requests. Callers without a term are programs on this machine, which need no fencing.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use tonic::Status;
use tracing::{info, warn};

use crate::atomic_write;

#[derive(Debug)]
pub(crate) struct FencingTokenStore {
    path: PathBuf,
    /// The newest term that a scheduler has sent. It never falls.
    newest: Mutex<u64>,
}

impl FencingTokenStore {
    /// Loads the saved term.
    pub(crate) fn load(path: PathBuf) -> Self {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let newest = Mutex::new(text.trim().parse().unwrap_or(0));
        Self { path, newest }
    }

    /// Accepts or refuses a request with this term, and saves a newer one.
    pub(crate) fn check_term(&self, term: u64) -> Result<(), Status> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if term < *newest {
            let text = format!(
                "this request is of term {term}, but a scheduler of term {newest} leads: the sender has lost the lease"
            );
            return Err(Status::failed_precondition(text));
        }
        if term > *newest {
            *newest = term;
            info!(term, "Scheduler leader changed");
            if let Err(problem) = atomic_write::replace(&self.path, term.to_string().as_bytes()) {
                warn!(%problem, term, "Failed to save the leader's term");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_term_is_refused_also_by_the_next_agent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("term");
        let fencing = FencingTokenStore::load(path.clone());
        assert!(fencing.check_term(7).is_ok());
        assert!(fencing.check_term(7).is_ok());
        assert!(fencing.check_term(6).is_err());
        let next = FencingTokenStore::load(path);
        let refused = next.check_term(6).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
        assert!(refused.message().contains("term 7"), "{refused}");
        assert!(next.check_term(8).is_ok());
    }
}
