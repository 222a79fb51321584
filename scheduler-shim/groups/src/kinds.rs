//! The rules beyond "one group per owner", a file for each family of kinds.

pub(crate) mod batch;
pub(crate) mod grove;
pub(crate) mod job_set;
pub(crate) mod karta;
pub(crate) mod knative;
pub(crate) mod kubeflow;
pub(crate) mod lws;
pub(crate) mod mpi;
pub(crate) mod pods;
pub(crate) mod pytorch;
pub(crate) mod ray;
pub(crate) mod skip;
pub(crate) mod training;
