//! The codes that refused calls end with.
//!
//! Invariant: only what is the caller's to change has another code than `INTERNAL`.
//! Failure: none here.

use tonic::Status;

use crate::disk;
use crate::node::agenda::Refused;
use crate::node::wire;

impl From<wire::Invalid> for Status {
    fn from(error: wire::Invalid) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

impl From<Refused> for Status {
    fn from(error: Refused) -> Self {
        let text = crate::one_line(&error);
        match error {
            Refused::Other(_) => Self::invalid_argument(text),
            Refused::TooMany => Self::resource_exhausted(text),
            Refused::Unknown(_) => Self::not_found(text),
            Refused::NotEnded(_) => Self::failed_precondition(text),
            Refused::Db(_) => Self::internal(text),
        }
    }
}

pub(super) fn manifest_error(error: &disk::Error) -> Status {
    let text = crate::one_line(error);
    match error {
        disk::Error::Missing(_) => Status::not_found(text),
        disk::Error::Busy { .. } => Status::failed_precondition(text),
        _ => Status::internal(text),
    }
}
