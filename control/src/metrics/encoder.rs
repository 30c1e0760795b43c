//! Writes metrics: name, help and series.

use std::fmt;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;

use crate::api::{NameParts, Service};
use crate::desired::ServiceKey;
use crate::durations::Durations;

/// Most services, and most backends, that get series of their own. A Prometheus server cannot take a quarter of a
/// million series from each of a hundred machines. The others share one, see [`super::Others`].
pub(super) const MOST_SERIES: usize = 5000;

/// Writes metrics one after the other.
pub(crate) struct Metrics<'a>(DescriptorEncoder<'a>);

impl<'a> Metrics<'a> {
    pub(crate) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    fn declare(
        &mut self,
        name: &'static str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'_>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, kind)
    }

    /// Writes a gauge without labels.
    pub(crate) fn gauge(
        &mut self,
        name: &'static str,
        help: &str,
        value: impl EncodeGaugeValue,
    ) -> fmt::Result {
        self.declare(name, help, MetricType::Gauge)?
            .encode_gauge(&value)
    }

    /// Writes a gauge with a value for each set of labels.
    pub(crate) fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &'static str,
        help: &str,
        series: impl IntoIterator<Item = (L, impl EncodeGaugeValue)>,
    ) -> fmt::Result {
        let mut metric = self.declare(name, help, MetricType::Gauge)?;
        for (labels, value) in series {
            metric.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// Writes a counter with one value.
    pub(crate) fn counter(&mut self, name: &'static str, help: &str, value: u64) -> fmt::Result {
        self.declare(name, help, MetricType::Counter)?
            .encode_counter::<NoLabelSet, u64, u64>(&value, None)
    }

    /// Writes a counter with a value for each set of labels.
    pub(crate) fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &'static str,
        help: &str,
        series: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut metric = self.declare(name, help, MetricType::Counter)?;
        for (labels, value) in series {
            metric
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
        }
        Ok(())
    }

    /// Writes a counter of seconds without labels.
    pub(crate) fn seconds(&mut self, name: &'static str, help: &str, seconds: f64) -> fmt::Result {
        let mut metric = self.declare(name, help, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, f64, u64>(&seconds, None)
    }

    /// Writes a histogram without labels.
    pub(crate) fn histogram(
        &mut self,
        name: &'static str,
        help: &str,
        taken: &Durations,
    ) -> fmt::Result {
        encode_durations(self.declare(name, help, MetricType::Histogram)?, taken)
    }

    /// Writes a histogram for each set of labels.
    pub(crate) fn histograms<'d, L: EncodeLabelSet>(
        &mut self,
        name: &'static str,
        help: &str,
        series: impl IntoIterator<Item = (L, &'d Durations)>,
    ) -> fmt::Result {
        let mut metric = self.declare(name, help, MetricType::Histogram)?;
        for (labels, taken) in series {
            encode_durations(metric.encode_family(&labels)?, taken)?;
        }
        Ok(())
    }
}

fn encode_durations(mut metric: MetricEncoder<'_>, taken: &Durations) -> fmt::Result {
    metric.encode_histogram::<NoLabelSet>(taken.sum(), taken.count(), &taken.buckets(), None)
}

/// Returns what gets series of its own: first what is `of_note`, then the others in their order.
pub(super) fn series<T>(all: &[T], of_note: fn(&T) -> bool) -> impl Iterator<Item = &T> {
    let first = all.iter().filter(move |one| of_note(one));
    let others = all.iter().filter(move |one| !of_note(one));
    first.chain(others).take(MOST_SERIES)
}

/// Name in the labels of the series that all without one of their own share. No service can have this name.
pub(super) const OTHERS: &str = "(others)";

/// Returns the rows that get traffic series of their own.
pub(super) fn with_series<T>(rows: &[T]) -> impl Iterator<Item = &T> {
    rows.iter().take(MOST_SERIES)
}

pub(super) fn service_labels(service: &Service) -> [(&'static str, String); 6] {
    key_labels(&service.name, service.service.parse().ok())
}

pub(super) fn key_labels(name: &str, key: Option<ServiceKey>) -> [(&'static str, String); 6] {
    let part = |part: fn(ServiceKey) -> String| key.map(part).unwrap_or_default();
    let [service, namespace, object] = name_labels(name);
    [
        service,
        namespace,
        object,
        ("address", part(|key| key.address.to_string())),
        ("port", part(|key| key.port.to_string())),
        ("protocol", part(|key| key.protocol.to_string())),
    ]
}

/// Returns the labels for the name of a service and for the object that it comes from.
fn name_labels(name: &str) -> [(&'static str, String); 3] {
    let parts = NameParts::of(name);
    [
        ("service", name.to_owned()),
        ("namespace", parts.namespace.to_owned()),
        ("name", parts.name.to_owned()),
    ]
}
