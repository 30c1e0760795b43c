//! `guideway cluster bundle`: what a bug report needs, in one tar file.
//!
//! Each file in it is bounded, and goes through [`redact`]. What cannot be had is a line of `errors.txt`, and no
//! reason to stop: a bundle is asked for when something is wrong.

mod archive;
mod objects;
mod redact;

use std::process::ExitCode;

use anyhow::Result;
use futures_util::StreamExt;
use futures_util::stream;
use k8s_openapi::jiff::Timestamp;
use kube::Client;

use self::archive::Archive;
use super::ask::{Answer, Place, Target};
use super::members::{Member, Members};
use super::page;
use super::report::Report;
use crate::cli::ClusterBundle;
use crate::commands;
use crate::render::Page;

/// Longest file in a bundle, in bytes.
const LONGEST: usize = 4 << 20;
/// Most lines of a log, the newest ones.
const MOST_LINES: u32 = 10_000;
/// How many requests are under way at a time: so many answers are in memory, and so many machines may be silent until
/// their time is over.
const AT_ONCE: usize = 32;

/// The pages of an agent, with the names of their files.
const OF_AGENT: [(&str, &str); 7] = [
    ("/status", "status.json"),
    ("/config", "config.json"),
    ("/services", "services.json"),
    ("/backends", "backends.json"),
    ("/drops", "drops.json"),
    ("/metrics", "metrics.txt"),
    ("/healthz", "healthz.txt"),
];
/// The pages of a controller.
const OF_CONTROLLER: [(&str, &str); 4] = [
    ("/status", "status.json"),
    ("/metrics", "metrics.txt"),
    ("/livez", "livez.txt"),
    ("/readyz", "readyz.txt"),
];

/// Writes the file. The exit code is 1 if nothing could be had.
///
/// # Errors
///
/// When the file cannot be written.
pub(super) async fn write(client: &Client, options: &ClusterBundle) -> Result<ExitCode> {
    let now = Timestamp::now();
    let name = now.strftime("guideway-bundle-%Y%m%dT%H%M%SZ").to_string();
    let path = options.output.clone();
    let path = path.unwrap_or_else(|| format!("{name}.tar").into());
    let mut archive = Archive::create(&path, name, now)?;
    let scope = &options.at;

    let mut wanted = vec![("api-server.json".to_owned(), Target::Api("/version".into()))];
    match Members::find(client, scope).await {
        Ok(members) => {
            let report = Report::of(client, &members, scope).await;
            let mut page = Page::new(Page::ENDLESS);
            page::page(&report, true, &mut page);
            archive.add("status.txt", page.into_text().as_bytes())?;
            archive.add("status.json", commands::json(&report, true)?.as_bytes())?;
            wanted.extend(members.members.iter().flat_map(of_member));
        }
        Err(error) => archive.miss("status.txt", &format!("{error:#}")),
    }
    let answers = wanted.into_iter().map(async |(name, target)| {
        let answer = target.read(client, LONGEST).await;
        (name, answer)
    });
    let mut answers = stream::iter(answers).buffered(AT_ONCE);
    while let Some((name, answer)) = answers.next().await {
        take(&mut archive, &name, answer)?;
    }
    objects::add(client, scope, &mut archive).await?;
    let (files, missing) = archive.finish()?;
    commands::print(&format!(
        "{}: {files} files; errors.txt in it names {missing} things that could not be had\n",
        path.display()
    ))?;
    Ok(ExitCode::from(u8::from(files == 0)))
}

/// Lists what there is to ask of a process, each with the name of its file.
fn of_member(member: &Member) -> Vec<(String, Target)> {
    let directory = match &member.place {
        Place::Pod { name, .. } => format!("pods/{name}"),
        // Some programs take what is before a colon for a machine's name.
        Place::Outside(address) => format!("edges/{}", address.ip()).replace(':', "-"),
    };
    let pages: &[(&str, &str)] = if member.is_controller {
        &OF_CONTROLLER
    } else {
        &OF_AGENT
    };
    let pages = pages.iter();
    let mut wanted: Vec<_> = pages
        .map(|(page, file)| (format!("{directory}/{file}"), member.place.page(page)))
        .collect();
    let Place::Pod {
        namespace, name, ..
    } = &member.place
    else {
        return wanted;
    };
    for container in &member.containers {
        // One byte more than fits tells that the log goes on.
        let log = format!(
            "/api/v1/namespaces/{namespace}/pods/{name}/log?container={}&tailLines={MOST_LINES}&limitBytes={}",
            container.name,
            LONGEST + 1
        );
        let file = format!("{directory}/{}", container.name);
        if container.has_restarted {
            let previous = Target::Api(format!("{log}&previous=true"));
            wanted.push((format!("{file}.previous.log"), previous));
        }
        wanted.push((format!("{file}.log"), Target::Api(log)));
    }
    wanted
}

fn take(archive: &mut Archive, name: &str, answer: Result<Answer, String>) -> Result<()> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(reason) => {
            archive.miss(name, &reason);
            return Ok(());
        }
    };
    let refusal = answer.refusal();
    if let Some(refusal) = &refusal {
        archive.miss(name, refusal);
    }
    // A page that says what is wrong, such as `/healthz`, is worth having too.
    if refusal.is_some() && answer.words_of_api().is_some() {
        return Ok(());
    }
    if answer.is_cut {
        archive.miss(name, &format!("cut after {LONGEST} bytes"));
    }
    archive.add(name, &answer.text)
}

#[cfg(test)]
mod tests {
    use super::super::members::Container;
    use super::*;

    fn files_of(place: Place, containers: Vec<Container>) -> Vec<String> {
        let member = Member {
            name: "a".to_owned(),
            is_controller: matches!(place, Place::Pod { .. }),
            place,
            waits: None,
            containers,
        };
        of_member(&member)
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    #[test]
    fn log_of_a_previous_container_is_asked_for_where_there_was_one() {
        let place = Place::Pod {
            namespace: "lb".to_owned(),
            name: "pod".to_owned(),
            port: 1,
        };
        let container = |name: &str, has_restarted| Container {
            name: name.to_owned(),
            has_restarted,
        };
        let files = files_of(place, vec![container("a", false), container("b", true)]);
        assert_eq!(
            files[OF_CONTROLLER.len()..],
            [
                "pods/pod/a.log",
                "pods/pod/b.previous.log",
                "pods/pod/b.log"
            ]
        );
    }

    #[test]
    fn edge_outside_has_no_log_and_no_colon_in_its_name() {
        let files = files_of(Place::Outside("[fd00::1]:1".parse().unwrap()), Vec::new());
        assert_eq!(files.len(), OF_AGENT.len());
        assert!(files.iter().all(|name| name.starts_with("edges/fd00--1/")));
    }
}
