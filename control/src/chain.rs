//! Errors with their sources on one line.

use std::error::Error;

use kube::core::Status;

/// Formats an error with its sources: `cannot attach: operation not permitted`.
///
/// An answer of the API server is reduced to its message; kube would print all its fields.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        next = cause.source();
        let part = match cause.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) => {
                next = None;
                message(status)
            }
            // The text of these only repeats that of their source.
            Some(kube::Error::Service(_) | kube::Error::HyperError(_)) if next.is_some() => {
                continue;
            }
            _ => cause.to_string(),
        };
        if text.is_empty() {
            text = part;
        } else if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
    }
    text.replace(['\n', '\r'], " ")
}

/// Returns the message of an API server's Status, else its reason or code.
fn message(status: &Status) -> String {
    let texts = [&status.message, &status.reason];
    let text = texts
        .into_iter()
        .map(|text| text.trim())
        .find(|text| !text.is_empty());
    text.map_or_else(|| format!("HTTP status {}", status.code), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::list_watch::WatchError;

    #[test]
    fn answer_of_the_api_server_is_its_message_once_and_on_one_line() {
        let refused = |message: &str, reason: &str| {
            let status = Status::failure(message, reason).with_code(403);
            chain(&WatchError::List(kube::Error::Api(status.boxed())))
        };
        let message = "services is forbidden: User \"x\" cannot list resource";
        let expected = format!("cannot list: {message}");
        assert_eq!(refused(message, "Forbidden"), expected);
        assert_eq!(refused("a\nb\n", ""), "cannot list: a b");
        assert_eq!(refused("", "Forbidden"), "cannot list: Forbidden");
        assert_eq!(refused("", ""), "cannot list: HTTP status 403");
    }

    #[test]
    fn what_an_error_says_of_its_source_is_said_once() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = WatchError::Watch(kube::Error::Service(refused.into()));
        assert_eq!(chain(&error), "cannot watch: connection refused");
    }
}
