use super::*;

#[test]
fn a_shortfall_that_is_called_in_is_no_refusal() {
    let pod = || PodRef {
        namespace: "team".to_owned(),
        name: "serve".to_owned(),
        uid: "uid".to_owned(),
    };
    let answered = |called_in| {
        let shortfall = v1::Shortfall {
            called_in,
            sentence: "it is short".to_owned(),
            ..v1::Shortfall::default()
        };
        answer(pod(), Ok(Err(refusal(shortfall))))
    };
    assert!(matches!(answered(true), SchedulerEvent::CalledIn(..)));
    assert!(matches!(answered(false), SchedulerEvent::Refused(..)));
}
