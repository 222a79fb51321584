//! `apportion-scheduler webhook`: turns options into rules and addresses, and signals into a shutdown.

use std::io::Write;

use apportion_admission::{AdmissionSettings, GpuDelivery, RequestBelowLimit, strict};
use apportion_exit::CommandFailure;
use apportion_webhook::{AdmissionRules, CertificateSource};
use tokio::signal::unix::{SignalKind, signal};

use crate::options::{self, SchedulerWebhookOptions};

/// Serves until a signal arrives.
pub(crate) fn run(asked: &SchedulerWebhookOptions) -> Result<(), CommandFailure> {
    asked.log.around(|| serve(asked))
}

fn serve(asked: &SchedulerWebhookOptions) -> Result<(), CommandFailure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(not_started)?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(not_started)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(not_started)?;
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let ended = apportion_webhook::run(
            options(asked),
            |addresses| {
                // Shows the ports if port 0 was chosen. A closed standard output is no error.
                let apportion_webhook::ListenAddresses { questions, health } = addresses;
                let _ = writeln!(std::io::stdout(), "questions {questions}\nhealth {health}");
            },
            stop,
        )
        .await;
        ended.map_err(|error| {
            CommandFailure::from_error(&error).hint("see `apportion-scheduler webhook --help`")
        })
    })
}

fn not_started(error: std::io::Error) -> CommandFailure {
    CommandFailure::new(format!("failed to start the webhook: {error}"))
}

fn options(asked: &SchedulerWebhookOptions) -> apportion_webhook::WebhookOptions {
    apportion_webhook::WebhookOptions {
        listen: asked.listen,
        health: asked.health,
        certificates: certificates(asked),
        client_ca: asked.client_ca.clone(),
        rules: AdmissionRules {
            schedulers: asked.schedulers.clone(),
            settings: settings(asked),
            compare_quotas: asked.compare_quotas,
            hami: asked.hami_resources,
        },
    }
}

fn certificates(asked: &SchedulerWebhookOptions) -> CertificateSource {
    if let Some(folder) = &asked.tls_dir {
        return CertificateSource::Files(folder.clone());
    }
    let service = format!("{}.{}.svc", asked.service, asked.namespace);
    CertificateSource::Own {
        namespace: asked.namespace.clone(),
        secret: asked.secret.clone(),
        names: [vec![service], asked.names.clone()].concat(),
        configurations: asked.configurations.clone(),
    }
}

fn settings(asked: &SchedulerWebhookOptions) -> AdmissionSettings {
    AdmissionSettings {
        sharing: !asked.no_sharing,
        delivery: match asked.delivery {
            options::DeliveryOption::Slot => GpuDelivery::Slot(asked.slot.clone()),
            options::DeliveryOption::ConfigMaps => GpuDelivery::ConfigMaps {
                with_memory_limit: false,
            },
            options::DeliveryOption::ConfigMapsWithLimit => GpuDelivery::ConfigMaps {
                with_memory_limit: true,
            },
        },
        block_visible_devices: asked.block_visible_devices,
        runtime_class: asked
            .runtime_class
            .clone()
            .filter(|class| !class.is_empty()),
        strict: asked.strict.then(strict::StrictBounds::default),
        count_shares: asked.count_shares,
        request_below_limit: match asked.request_below_limit {
            options::LimitAboveRequest::Refuse => RequestBelowLimit::Refuse,
            options::LimitAboveRequest::ChargeLimit => RequestBelowLimit::ChargeLimit,
            options::LimitAboveRequest::Burst => RequestBelowLimit::Burst,
        },
    }
}
