//! Names of methods and codes, as labels of metrics need them.
//!
//! Invariant: what a peer sends never becomes a name: each comes from the protocol.
//! Failure: `None` for a method that the protocol does not have.

use tonic::Code;

/// The methods of both services, as the protocol names them.
pub const METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));

/// The protocol's own text of a method's name.
#[must_use]
pub fn method_name(name: &str) -> Option<&'static str> {
    METHODS.iter().find(|known| **known == name).copied()
}

/// The name of a code in gRPC, such as `NOT_FOUND`.
#[must_use]
pub const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_the_protocol_has_its_name_and_no_other_has() {
        let facts = include_str!("../../tests/fixtures/cri-fields.tsv");
        let lines = facts.lines().filter_map(|line| line.strip_prefix("rpc\t"));
        let mut count = 0;
        for name in lines.filter_map(|line| line.split('\t').nth(1)) {
            assert_eq!(method_name(name), Some(name));
            count += 1;
        }
        assert_eq!(count, METHODS.len());
        assert_eq!(method_name("Levitate"), None);
    }
}
