use proptest::prelude::*;

use super::*;

fn headers() -> impl Strategy<Value = Headers> {
    prop::collection::vec(("[a-z-]{1,12}", ".{0,40}"), 0..6)
}

fn frame() -> impl Strategy<Value = Frame> {
    let id = 0..=ID;
    prop_oneof![
        (id.clone(), any::<bool>(), headers()).prop_map(|(stream, fin, headers)| {
            Frame::SynStream {
                stream,
                fin,
                headers,
            }
        }),
        (id.clone(), any::<bool>(), headers()).prop_map(|(stream, fin, headers)| {
            Frame::SynReply {
                stream,
                fin,
                headers,
            }
        }),
        (id.clone(), any::<bool>(), headers()).prop_map(|(stream, fin, headers)| {
            Frame::Headers {
                stream,
                fin,
                headers,
            }
        }),
        (id.clone(), any::<u32>()).prop_map(|(stream, status)| Frame::Reset {
            stream,
            status: ResetStatus(status)
        }),
        any::<u32>().prop_map(Frame::Ping),
        (id.clone(), any::<u32>()).prop_map(|(last, status)| Frame::GoAway {
            last,
            status: GoAwayStatus(status)
        }),
        (
            id,
            any::<bool>(),
            prop::collection::vec(any::<u8>(), 0..2000)
        )
            .prop_map(|(stream, fin, content)| Frame::Data {
                stream,
                fin,
                content: content.into()
            }),
        prop_oneof![Just(4_u16), Just(9), 10..0xffff_u16].prop_map(Frame::Ignored),
    ]
}

/// Pieces of one data frame joined again.
fn joined(frames: Vec<Frame>) -> Vec<Frame> {
    let mut all: Vec<Frame> = Vec::new();
    let mut is_open = false;
    for frame in frames {
        if let Frame::Data {
            fin: end, content, ..
        } = &frame
            && let Some(Frame::Data {
                fin, content: old, ..
            }) = all.last_mut()
            && is_open
        {
            *old = [&old[..], &content[..]].concat().into();
            *fin = *end;
        } else {
            all.push(frame);
        }
        is_open = true;
    }
    all
}

/// All frames of `bytes`, which arrive in pieces that end at `cuts`.
fn decoded(bytes: &[u8], cuts: &[usize]) -> Result<Vec<Frame>, Error> {
    let mut decoder = Decoder::default();
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    let mut at = 0;
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        let cut = cut.clamp(at, bytes.len());
        buffer.extend_from_slice(&bytes[at..cut]);
        at = cut;
        while let Some(frame) = decoder.decode(&mut buffer)? {
            frames.push(frame);
        }
    }
    while let Some(frame) = decoder.decode_eof(&mut buffer)? {
        frames.push(frame);
    }
    Ok(frames)
}

proptest! {
    #[test]
    fn frames_survive_the_wire_however_it_is_cut(
        frames in prop::collection::vec(frame(), 1..12),
        cuts in prop::collection::vec(0..20_000_usize, 0..20),
    ) {
        let mut encoder = Encoder::new().unwrap();
        let mut bytes = BytesMut::new();
        for frame in &frames {
            encoder.encode(frame.clone(), &mut bytes).unwrap();
        }
        let mut cuts = cuts;
        cuts.sort_unstable();
        // Data frames are separated by pings, so that pieces are distinct from frames.
        let whole = decoded(&bytes, &[]).unwrap();
        prop_assert_eq!(&whole, &frames);
        let cut = decoded(&bytes, &cuts).unwrap();
        let contents = |frames: &[Frame]| {
            let mut all = Vec::new();
            for frame in frames {
                if let Frame::Data { stream, content, .. } = frame {
                    all.extend(content.iter().map(|byte| (*stream, *byte)));
                }
            }
            all
        };
        let others = |frames: Vec<Frame>| {
            let mut frames = frames;
            frames.retain(|frame| !matches!(frame, Frame::Data { .. }));
            frames
        };
        prop_assert_eq!(contents(&cut), contents(&frames));
        prop_assert_eq!(others(cut), others(frames));
    }

    #[test]
    fn any_bytes_end_in_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        let _ = decoded(&bytes, &[]);
    }
}

#[test]
fn the_end_of_data_is_in_its_last_piece_only() {
    let frame = Frame::Data {
        stream: 3,
        fin: true,
        content: vec![7; MAX_PIECE * 2 + 5].into(),
    };
    let mut bytes = BytesMut::new();
    Encoder::new()
        .unwrap()
        .encode(frame.clone(), &mut bytes)
        .unwrap();
    let pieces = decoded(&bytes, &[]).unwrap();
    let ends = pieces
        .iter()
        .map(|piece| matches!(piece, Frame::Data { fin: true, .. }));
    assert_eq!(ends.collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(joined(pieces), [frame]);
}

#[test]
fn a_cut_frame_and_an_impossible_one_are_errors() {
    let cut = decoded(&[0x80, 3, 0, 6, 0, 0, 0, 4, 1], &[]);
    assert!(matches!(cut, Err(Error::Cut)), "{cut:?}");
    let other_version = decoded(&[0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1], &[]);
    assert!(matches!(other_version, Err(Error::Malformed("version"))));
    let large = decoded(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff], &[]);
    assert!(matches!(large, Err(Error::TooLarge("control frame"))));
}
