//! Messages of a container runtime on the NRI socket, in pieces: frames, envelopes, containers.
#![no_main]

use apportion_nri::frame::{FrameDecoder, Kind, MuxConnection, TtrpcMessage, encode};
use apportion_nri::{GrantHolder, Grants, NriSession, VerdictMode, VerdictRules, WISHES, wire};
use libfuzzer_sys::fuzz_target;
use prost::Message as _;

fn grants() -> Grants {
    let granted = GrantHolder {
        claimed_in: None,
        pod: "uid-1".to_owned(),
        container: Some("main".to_owned()),
        account: "4d-1".to_owned(),
        env: vec![("APPORTION_GRANT".to_owned(), "4d-1".to_owned())],
        is_limited: true,
    };
    Grants::from([("4d-1".to_owned(), granted)])
}

fn rules(mode: VerdictMode) -> VerdictRules {
    VerdictRules {
        mode,
        exempt: vec!["gpu-operator".to_owned()],
        accounts: "/run/apportion/accounts".to_owned(),
        own: vec!["/usr/local/lib/apportion".to_owned()],
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else {
        return;
    };
    let mode = match cut & 1 {
        0 => VerdictMode::Enforce,
        _ => VerdictMode::Audit,
    };
    let (grants, rules) = (grants(), rules(mode));
    let (mut session, _) = NriSession::open("apportion", "10", WISHES[0]);
    let mut decoder = FrameDecoder::default();
    for piece in bytes.chunks(usize::from(cut >> 1) + 1) {
        let Ok(messages) = decoder.feed(piece) else {
            return;
        };
        for (lane, message) in messages {
            let again = FrameDecoder::default().feed(&encode(lane, &message));
            assert_eq!(
                again,
                Ok(vec![(lane, message.clone())]),
                "sent and read back"
            );
            if !take(&mut session, lane, &message, &grants, &rules) {
                return;
            }
        }
    }
});

/// Whether the session goes on. A call gets one answer; other messages get none.
fn take(
    session: &mut NriSession,
    lane: MuxConnection,
    message: &TtrpcMessage,
    grants: &Grants,
    rules: &VerdictRules,
) -> bool {
    let Ok(step) = session.take(lane, message, grants, rules) else {
        return false;
    };
    let is_call = (lane, message.kind) == (MuxConnection::Plugin, Kind::Request);
    assert_eq!(step.answer.is_some(), is_call);
    if let Some((lane, answer)) = step.answer {
        assert_eq!(
            (lane, answer.stream, answer.kind),
            (MuxConnection::Plugin, message.stream, Kind::Response)
        );
        assert!(wire::Response::decode(answer.payload.as_slice()).is_ok());
    }
    true
}
