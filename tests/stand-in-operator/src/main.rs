//! A stand-in for workload operators of other projects. It creates the children of their objects once, with the names,
//! labels and owners of the real operators. It repairs and counts nothing and writes no status.
//!
//! A scheduler sees only an operator's children. Each row of [`kinds::ALL`] stands in for one operator.
#![forbid(unsafe_code)]

use std::pin::pin;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Api, Client};
use serde_json::Value;
use tokio_stream::StreamExt;

mod jobset;
mod kinds;
mod knative;
mod kubeflow;

use kinds::WorkloadKind;

/// Creates the children of other operators' workloads.
#[derive(Debug, Parser)]
#[command(version)]
struct StandInOperatorArguments {}

fn main() -> ExitCode {
    let StandInOperatorArguments {} = StandInOperatorArguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let served = runtime
        .context("failed to start")
        .and_then(|runtime| runtime.block_on(serve()));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("apportion-stand-in-operator: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<()> {
    let client = Client::try_default().await;
    let client = client.context("failed to find the API server")?;
    let mut all = tokio::task::JoinSet::new();
    for kind in kinds::ALL {
        all.spawn(follow(client.clone(), kind));
    }
    while all.join_next().await.is_some() {}
    Ok(())
}

/// Creates the children of all existing and new objects of a kind.
async fn follow(client: Client, kind: &'static WorkloadKind) {
    let resource = kind.resource();
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut events = pin!(watcher(objects, Config::default()));
    while let Some(event) = events.next().await {
        let (Ok(Event::Apply(object)) | Ok(Event::InitApply(object))) = event else {
            // A kind that is not installed is asked for again, with a growing delay.
            continue;
        };
        if object.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let Ok(mut json) = serde_json::to_value(&object) else {
            continue;
        };
        json["apiVersion"] = kinds::version(&json, &resource).into();
        json["kind"] = resource.kind.as_str().into();
        for child in (kind.children)(&json) {
            create(&client, &child).await;
        }
    }
}

async fn create(client: &Client, child: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&child["apiVersion"]), text(&child["kind"]));
    let (group, version) = version.split_once('/').unwrap_or(("", &version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
    let namespace = text(&child["metadata"]["namespace"]);
    let all: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
    let Ok(object) = serde_json::from_value::<DynamicObject>(child.clone()) else {
        return;
    };
    match all.create(&PostParams::default(), &object).await {
        // An earlier event has already created it.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => eprintln!("{namespace}/{}: {error}", text(&child["metadata"]["name"])),
        Ok(_) => {}
    }
}
