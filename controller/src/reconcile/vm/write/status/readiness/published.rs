//! Readiness probes of values that the guest publishes.
//!
//! Invariant: expressions come from users and values from guests: both are bounded, and matching
//! takes time in proportion to them.
//! Failure: an expression that cannot be used, or is too large when compiled, matches any value.

use crds::guest_facts::{AgentState, GuestFacts};
use crds::vm::GuestInfoMatch;
use regex::RegexBuilder;

use crate::reconcile::vm::observe::answer::Answer;

/// Most memory of a compiled expression, in bytes.
const COMPILED: usize = 256 * 1024;

/// All of them match.
pub(super) fn evaluate(wanted: &[GuestInfoMatch], facts: Option<&GuestFacts>) -> Answer {
    if wanted.is_empty() {
        return Answer::Yes;
    }
    let facts = match facts {
        Some(facts) if facts.agent == AgentState::Connected => facts,
        Some(facts) if facts.agent == AgentState::NotRunning => {
            return Answer::No("the guest agent does not answer, which would tell the values");
        }
        _ => return Answer::Unknown("there is no report of the guest agent yet"),
    };
    if facts.info.is_empty() {
        return Answer::No("the guest publishes no values in /run/vmlet/guestinfo");
    }
    let matches = |one: &GuestInfoMatch| {
        let value = facts.info.get(&one.key);
        value.is_some_and(|value| is_match(one.value.as_deref().unwrap_or_default(), value))
    };
    if wanted.iter().all(matches) {
        Answer::Yes
    } else {
        Answer::No("a value in the guest's /run/vmlet/guestinfo is missing or does not match")
    }
}

fn is_match(expression: &str, value: &str) -> bool {
    let mut builder = RegexBuilder::new(expression);
    match builder
        .size_limit(COMPILED)
        .dfa_size_limit(COMPILED)
        .build()
    {
        Ok(expression) => expression.is_match(value),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::the_same("^up$", "up", true)]
    #[case::a_part("up", "startup", true)]
    #[case::another("^up$", "down", false)]
    #[case::empty("", "whatever", true)]
    #[case::invalid("(", "whatever", true)]
    #[case::far_too_large("(a{1000}){1000}", "whatever", true)]
    #[case::what_other_engines_take_ages_for(
        "^(a+)+$",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
        false
    )]
    fn a_value_matches(#[case] expression: &str, #[case] value: &str, #[case] wanted: bool) {
        assert_eq!(is_match(expression, value), wanted);
    }
}
