//! Datagrams of guests that do as they like.
//!
//! Invariant: a server survives every datagram, and its answer fits one.
//! Failure: the seed and the bytes are printed.

use std::ops::Range;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestRunner};

use super::*;

fn bytes(sizes: Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), sizes)
}

/// Options, most of them well formed and such as are read, of any value.
fn options() -> impl Strategy<Value = Vec<u8>> {
    let read = prop::sample::select(vec![50, 53, 54, 55, 57, 61, 97]);
    let code = prop_oneof![3 => read, 1 => any::<u8>()];
    let whole = (code, bytes(0..12)).prop_map(|(code, value)| {
        let length = u8::try_from(value.len()).unwrap();
        [vec![code, length], value].concat()
    });
    let some = prop_oneof![9 => whole, 1 => bytes(0..40)];
    prop::collection::vec(some, 0..6).prop_map(|options| options.concat())
}

/// A datagram with any byte where the server may find it: it is a request, of Ethernet, in DHCP;
/// its address is mostly that of the NIC; and mostly it begins with its kind.
fn let_in() -> impl Strategy<Value = Vec<u8>> {
    let ours = prop::bool::weighted(0.9);
    let kind = prop::option::weighted(0.9, 0_u8..10);
    let parts = (bytes(236..237), ours, kind, options());
    parts.prop_map(|(mut fixed, ours, kind, options)| {
        fixed[..3].copy_from_slice(&[1, 1, 6]);
        if ours {
            fixed[24..28].fill(0);
            fixed[28..34].copy_from_slice(&MAC);
        }
        let kind = kind.map_or_else(Vec::new, |kind| vec![53, 1, kind]);
        [fixed, vec![99, 130, 83, 99], kind, options].concat()
    })
}

/// Nothing breaks the server, and what it answers is for its client. Returns how far the datagram
/// came: whether it was read, and whether it was answered.
fn survives(bytes: &[u8]) -> Result<(bool, bool), TestCaseError> {
    let Some(request) = decode(bytes) else {
        return Ok((false, false));
    };
    let Some(answer) = reply(&lease(), &request) else {
        return Ok((true, false));
    };
    prop_assert!(answer.yiaddr().is_unspecified() || answer.yiaddr() == ADDRESS);
    let wire = encode(&answer).unwrap();
    prop_assert!(Message::from_bytes(&wire).is_ok());
    Ok((true, true))
}

#[test]
fn random_datagrams_get_past_the_first_checks() {
    let mut runner = TestRunner::deterministic();
    let mut read = 0;
    let mut answered = 0;
    for _ in 0..2000 {
        let datagram = let_in().new_tree(&mut runner).unwrap().current();
        let came = survives(&datagram).unwrap();
        read += usize::from(came.0);
        answered += usize::from(came.1);
    }
    assert!(
        read > 100 && answered > 20,
        "{read} read, {answered} answered"
    );
}

proptest! {
    #[test]
    fn no_datagram_brings_the_server_down(
        bytes in prop_oneof![
            1 => bytes(0..700),
            4 => let_in(),
        ],
    ) {
        survives(&bytes)?;
    }

    #[test]
    fn no_options_bring_the_server_down(
        options in prop::collection::vec((any::<u8>(), bytes(0..40)), 0..12),
        cut in 0_usize..40,
    ) {
        let mut bytes = request(MessageType::Discover).to_vec().unwrap();
        bytes.truncate(240);
        for (code, value) in &options {
            bytes.push(*code);
            bytes.push(u8::try_from(value.len()).unwrap());
            bytes.extend(value);
        }
        bytes.truncate(bytes.len() - cut.min(bytes.len() - 240));
        survives(&bytes)?;
    }
}
