//! A card is withdrawn because of XIDs, and allocated again only on proof.

use apportion_proto::AgentClient;
use apportion_proto::v1::CardHealth;

use crate::host::*;

fn xid(host: &Host, card: u32, xid: u64) {
    let xid = format!(r#"{{"Xid":{{"card":{card},"xid":{xid}}}}}"#);
    host.play(&format!(r#"{{"Nvml":{{"Control":{xid}}}}}"#));
}

fn recovery(host: &Host, card: u32, action: u32) {
    let recovery = format!(r#"{{"Recovery":{{"card":{card},"action":{action}}}}}"#);
    host.play(&format!(r#"{{"Nvml":{{"Control":{recovery}}}}}"#));
}

async fn becomes(client: &mut AgentClient, index: usize, health: CardHealth) {
    eventually(&format!("card {index} is {health:?}"), async || {
        (card(client, index).await.health() == health).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_card_that_needs_a_reset_is_given_out_again_only_after_it() {
    let host = Host::new(2);
    let (_agent, mut client) = host.agent(&[]).await;
    // Programs' own errors do not withdraw a card. XIDs before the agent listens are lost.
    let own = r#"apportion_gpu_errors_total{gpu_uuid="#;
    eventually("the error is counted", async || {
        xid(&host, 0, 31);
        (host.metric(own, "application") >= Some(1.0)).then_some(())
    })
    .await;
    assert_eq!(card(&mut client, 0).await.health(), CardHealth::Healthy);

    recovery(&host, 0, 1);
    xid(&host, 0, 119);
    becomes(&mut client, 0, CardHealth::Unhealthy).await;
    assert_eq!(card(&mut client, 0).await.free_bytes, 0);
    let uuid = card(&mut client, 0).await.uuid;
    let action = |word: &str| {
        let series = format!(r#"apportion_gpu_recovery_action{{gpu_uuid="{uuid}""#);
        host.metric(&series, &format!(r#"action="{word}""#))
    };
    eventually("what it needs shows", async || {
        ((action("gpu_reset"), action("none")) == (Some(1.0), Some(0.0))).then_some(())
    })
    .await;
    assert_eq!(card(&mut client, 1).await.health(), CardHealth::Healthy);
    // Two checks later it is still withdrawn, because the driver still reports a reset.
    let checks = std::time::Instant::now() + std::time::Duration::from_secs(3);
    eventually("time passes", async || {
        assert_eq!(card(&mut client, 0).await.health(), CardHealth::Unhealthy);
        (std::time::Instant::now() > checks).then_some(())
    })
    .await;
    recovery(&host, 0, 7);
    eventually("what nobody knows is something else", async || {
        (action("other") == Some(1.0)).then_some(())
    })
    .await;
    recovery(&host, 0, 0);
    becomes(&mut client, 0, CardHealth::Healthy).await;
    eventually("it needs nothing more", async || {
        ((action("other"), action("none")) == (Some(0.0), Some(1.0))).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_card_that_needed_a_reset_before_the_agent_started_is_not_given_out() {
    let host = Host::new(1);
    recovery(&host, 0, 1);
    let (_agent, mut client) = host.agent(&[]).await;
    becomes(&mut client, 0, CardHealth::Unhealthy).await;
    recovery(&host, 0, 0);
    becomes(&mut client, 0, CardHealth::Healthy).await;
}

#[tokio::test]
async fn a_card_whose_memory_waits_to_be_repaired_is_not_given_out() {
    let rows = |host: &Host, pending: bool, failed: bool| {
        let rows = format!(r#"{{"pending":{pending},"failed":{failed}}}"#);
        let control = format!(r#"{{"Rows":{{"card":1,"rows":{rows}}}}}"#);
        host.play(&format!(r#"{{"Nvml":{{"Control":{control}}}}}"#));
    };
    let host = Host::new(2);
    rows(&host, true, false);
    let (_agent, mut client) = host.agent(&[]).await;
    becomes(&mut client, 1, CardHealth::Unhealthy).await;
    assert_eq!(card(&mut client, 0).await.health(), CardHealth::Healthy);
    rows(&host, false, false);
    becomes(&mut client, 1, CardHealth::Healthy).await;
    rows(&host, false, true);
    becomes(&mut client, 1, CardHealth::Unhealthy).await;
}
