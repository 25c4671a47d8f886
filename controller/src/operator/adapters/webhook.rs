//! A webhook server, where one is installed; none is by default.
//!
//! Invariant: what cannot be called, and must be, is unavailable.
//! Failure: none.

use std::time::Duration;

use super::conditions;
use crate::operator::component::Conditions;

/// A certificate that lasts less is a fault.
const SOON: Duration = Duration::from_hours(7 * 24);

/// What is known of a webhook and its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Requests fail when it cannot be called.
    pub must_answer: bool,
    /// Servers that are ready.
    pub ready_endpoints: u32,
    /// Servers that there should be.
    pub wanted_endpoints: u32,
    /// The configuration has the authority that signed the certificate.
    pub authority_matches: bool,
    /// A new certificate or authority is being handed out.
    pub rotating: bool,
    /// How long the certificate is still valid; `None`: it has expired.
    pub valid_for: Option<Duration>,
}

/// The four conditions of a webhook.
#[must_use]
pub fn webhook(webhook: &Webhook) -> Conditions {
    let unavailable = if webhook.valid_for.is_none() {
        Some("its certificate has expired")
    } else if !webhook.authority_matches {
        Some("its certificate is of another authority")
    } else if webhook.must_answer && webhook.ready_endpoints == 0 {
        Some("no server is ready")
    } else {
        None
    };
    let degraded = if webhook.valid_for.is_none_or(|left| left < SOON) {
        Some("its certificate expires soon or has expired")
    } else if webhook.wanted_endpoints >= 2 && webhook.ready_endpoints == 1 {
        Some("one server is left")
    } else {
        None
    };
    let rotating = webhook
        .rotating
        .then_some("a certificate is being replaced");
    conditions(
        unavailable.map(str::to_owned),
        rotating.map(str::to_owned),
        degraded.map(str::to_owned),
        None,
    )
}
