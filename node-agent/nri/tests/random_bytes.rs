//! Any bytes, in pieces of any size, are either decoded or refused.

use apportion_nri::frame::{FrameDecoder, Kind, MuxConnection, TtrpcMessage, encode};
use apportion_nri::{Grants, NriSession, VerdictRules, WISHES, wire};
use proptest::prelude::*;
use prost::Message as _;

fn lane() -> impl Strategy<Value = MuxConnection> {
    prop_oneof![Just(MuxConnection::Plugin), Just(MuxConnection::Runtime)]
}

fn message() -> impl Strategy<Value = TtrpcMessage> {
    let kind = prop_oneof![
        Just(Kind::Request),
        Just(Kind::Response),
        (3u8..).prop_map(Kind::Other)
    ];
    let payload = prop::collection::vec(any::<u8>(), 0..10_000);
    (any::<u32>(), kind, payload).prop_map(|(stream, kind, payload)| TtrpcMessage {
        stream,
        kind,
        payload,
    })
}

fn methods() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("Configure".to_owned()),
        Just("Synchronize".to_owned()),
        Just("CreateContainer".to_owned()),
        Just("ValidateContainerAdjustment".to_owned()),
        Just("RemoveContainer".to_owned()),
        Just("StateChange".to_owned()),
        ".*",
    ]
}

proptest! {
    #[test]
    fn messages_come_out_as_they_went_in_however_they_are_cut(
        messages in prop::collection::vec((lane(), message()), 1..6),
        cuts in prop::collection::vec(1usize..5000, 1..8),
    ) {
        let bytes: Vec<u8> = messages.iter().flat_map(|(lane, message)| encode(*lane, message)).collect();
        let mut decoder = FrameDecoder::default();
        let (mut read, mut rest) = (Vec::new(), bytes.as_slice());
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, left) = rest.split_at((*cut).min(rest.len()));
            read.extend(decoder.feed(piece).expect("they are within bounds"));
            rest = left;
        }
        prop_assert_eq!(read, messages);
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8)) {
        let mut decoder = FrameDecoder::default();
        for piece in pieces {
            if decoder.feed(&piece).is_err() {
                break;
            }
        }
    }

    #[test]
    fn every_call_gets_one_answer_or_ends_the_session(
        method in methods(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        stream: u32,
    ) {
        let (mut session, _) = NriSession::open("apportion", "10", WISHES[0]);
        let request = wire::Request {
            service: "nri.pkg.api.v1alpha1.Plugin".to_owned(),
            method,
            payload,
            timeout_nano: 0,
        };
        let call = TtrpcMessage { stream, kind: Kind::Request, payload: request.encode_to_vec() };
        if let Ok(step) = session.take(MuxConnection::Plugin, &call, &Grants::new(), &VerdictRules::default()) {
            let (lane, answer) = step.answer.expect("a call is answered");
            prop_assert_eq!((lane, answer.stream, answer.kind), (MuxConnection::Plugin, stream, Kind::Response));
            prop_assert!(wire::Response::decode(answer.payload.as_slice()).is_ok());
        }
    }
}
