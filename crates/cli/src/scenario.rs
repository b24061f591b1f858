//! `evenkeel scenario`, and the search for scenarios by name or path.

use std::collections::BTreeMap;
use std::path::Path;

use evenkeel_files::{Kind, Text, shown};
use evenkeel_model::qdisc::Catalogue;
use evenkeel_model::scenario::bundled::{bundled, variant_tables};
use evenkeel_model::scenario::{
    BulkGroup, ClientGroup, GroupCount, OnOff, RequestClients, Scenario, Setups, Tenants, Variant, Workload,
    WorkloadKind, parse_with, place_of, qdisc_files,
};
use evenkeel_model::shell::Line;
use evenkeel_model::text::counted;
use evenkeel_receive::policy::PolicyFile;
use evenkeel_receive::{ConfiguredNic, NicModel};
use evenkeel_report::page::{Heading, Page};

use crate::arguments::ScenarioCommand;
use crate::exit::{Exit, Failure, print, print_page};
use crate::input;
use crate::progress::page;

pub struct Loaded {
    pub scenario: Scenario,
    pub text: String,
    /// The file's name, for messages.
    pub origin: String,
    /// Text of each file in `qdisc-files`, by name.
    pub qdisc_files: BTreeMap<String, String>,
}

/// The source of a scenario's `qdisc-files`: a study's texts, or else a directory.
#[derive(Clone, Copy)]
pub struct Files<'a> {
    pub directory: &'a Path,
    /// Texts of `qdisc-files` that a study keeps, by name.
    pub kept: Option<&'a BTreeMap<String, String>>,
}

impl<'a> Files<'a> {
    pub fn of(directory: &'a Path) -> Self {
        Self { directory, kept: None }
    }

    fn setups(&self, name: &str) -> Result<OwnSetups, Failure> {
        match self.kept.and_then(|kept| kept.get(name)) {
            Some(text) => OwnSetups::parse(text, name),
            None => OwnSetups::read(&self.directory.join(name)),
        }
    }
}

pub struct OwnSetups {
    pub text: String,
    catalogue: Catalogue,
}

impl OwnSetups {
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let Text { text, origin } = input::read(path, Kind::QdiscSetups)?;
        Self::parse(&text, &origin)
    }

    /// Parses the text of a file. Errors name the file `origin`.
    pub fn parse(text: &str, origin: &str) -> Result<Self, Failure> {
        let catalogue = Catalogue::parse(text, origin).map_err(|error| Failure::new(Exit::Usage, error))?;
        Ok(Self { text: text.to_owned(), catalogue })
    }
}

/// Finds a scenario by its bundled name, or by its path.
pub fn load(name: &str) -> Result<Loaded, Failure> {
    load_with(name, None)
}

/// Finds a scenario as [`load`] does. Adds the user's qdisc setups to a scenario of qdiscs.
pub fn load_with(name: &str, own: Option<&OwnSetups>) -> Result<Loaded, Failure> {
    if let Some((_, text)) = bundled().iter().find(|(bundled, _)| *bundled == name) {
        return parse_loaded(text, name, Files::of(Path::new("")), own);
    }
    if !input::is_path(name) {
        let names: Vec<&str> = bundled().iter().map(|(name, _)| *name).collect();
        return Err(Failure::unknown("scenario", name, names, "or give a path to a TOML file"));
    }
    load_file(Path::new(name), own)
}

fn load_file(path: &Path, own: Option<&OwnSetups>) -> Result<Loaded, Failure> {
    let Text { text, origin } =
        input::read(path, Kind::Scenario).map_err(|failure| match bundled_at(path) {
            Some(name) => failure
                .and(&format!("the bundled scenario is named {name}, see: evenkeel scenario show {name}")),
            None => failure,
        })?;
    parse_loaded(&text, &origin, Files::of(input::directory_of(path)), own)
}

/// Returns the bundled scenario with this file name, with or without `.toml`, if no such file exists.
/// The error can then name the scenario.
fn bundled_at(path: &Path) -> Option<&'static str> {
    let name = path.to_str().filter(|_| !path.exists())?;
    let name = name.strip_suffix(".toml").unwrap_or(name);
    bundled().iter().map(|(known, _)| *known).find(|known| *known == name)
}

/// Parses a scenario and the files that it names.
pub fn parse_loaded(
    text: &str,
    origin: &str,
    files: Files<'_>,
    own: Option<&OwnSetups>,
) -> Result<Loaded, Failure> {
    let within = |place: &str, failure: &Failure| {
        Failure::new(failure.exit(), format!("{origin}: {place}: {}", failure.message()))
    };
    let (mut catalogue, mut kept) = (Catalogue::bundled(), BTreeMap::new());
    for file in qdisc_files(text) {
        let setups = files.setups(&file).map_err(|failure| within("qdisc-files", &failure))?;
        catalogue = catalogue.extended(setups.catalogue);
        kept.insert(file, setups.text);
    }
    let mut further = Vec::new();
    if let Some(own) = own {
        further = own.catalogue.names().map(str::to_owned).collect();
        catalogue = catalogue.extended(own.catalogue.clone());
    }
    let setups = Setups { catalogue: Some(&catalogue), further: &further };
    let mut scenario = parse_with(text, origin, variant_tables(), setups)
        .map_err(|error| Failure::new(Exit::Usage, error))?;
    for (variant, supplied) in scenario.supplied().filter(|(_, supplied)| supplied.text.is_none()) {
        let path = files.directory.join(&supplied.origin);
        let text = input::read(&path, Kind::ScenarioPart)
            .map_err(|failure| within(&format!("variant.{variant}"), &failure))?;
        supplied.text = Some(text.text);
    }
    for variant in scenario.all_variants() {
        let wrong = |error: &dyn std::fmt::Display| {
            Failure::new(Exit::Usage, format!("{origin}: variant.{}: {error}", variant.name))
        };
        if let Some(Err(error)) = variant.transfers().map(|knobs| knobs.machine.profile()) {
            return Err(wrong(&error));
        }
        let Some(knobs) = variant.receive() else { continue };
        let model = match knobs.nic.own().and_then(|own| Some((own, own.text.as_ref()?))) {
            Some((own, text)) => Some(NicModel::parse(text, &own.origin).map_err(|error| wrong(&error))?),
            None => NicModel::built_in(&knobs.nic.to_string()),
        };
        // A scenario has at most 256 queues.
        let queues = scenario.link.queues as u16;
        if let Some(Err(error)) = model.map(|model| ConfiguredNic::new(&model, queues)) {
            let place = place_of(text, origin, "link.queues").unwrap_or_else(|| origin.to_owned());
            let text = format!("{place}: link.queues: variant.{}: {error}", variant.name);
            return Err(Failure::new(Exit::Usage, text));
        }
        if let Some((own, text)) = knobs.policy.own().and_then(|own| Some((own, own.text.as_ref()?))) {
            PolicyFile::parse(text, &own.origin).map_err(|error| wrong(&error))?;
        }
    }
    Ok(Loaded { scenario, text: text.to_owned(), origin: origin.to_owned(), qdisc_files: kept })
}

pub fn scenario(command: &ScenarioCommand) -> Result<Exit, Failure> {
    match command {
        ScenarioCommand::List => list(),
        ScenarioCommand::Show { scenario, toml } => show(scenario, *toml),
        ScenarioCommand::Check { files } => check(files),
    }
}

fn list() -> Result<Exit, Failure> {
    let mut page = page();
    let scenarios = bundled();
    page.answer(&format!(
        "{}: `evenkeel run NAME` runs one, `evenkeel scenario show NAME` shows its settings.",
        counted(scenarios.len(), "bundled scenario")
    ));
    page.gap();
    let widest = scenarios.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, _) in scenarios {
        page.labelled(&format!("{name:widest$}  "), &load(name)?.scenario.title);
    }
    print_page(page)?;
    Ok(Exit::Done)
}

fn show(name: &str, toml: bool) -> Result<Exit, Failure> {
    let Loaded { scenario, text, .. } = load(name)?;
    if toml {
        print(&format!("{}\n", text.trim_end()))?;
        return Ok(Exit::Done);
    }
    let mut page = page();
    page.answer(&format!("{}: {}.", scenario.name, scenario.title.trim_end_matches('.')));
    page.gap();
    if !scenario.description.is_empty() {
        page.line(&scenario.description);
        page.gap();
    }
    for (label, text) in outline(&scenario) {
        page.labelled(&format!("{label:<10}"), &text);
    }
    match scenario.workload.tenants() {
        Some(tenants) => show_points(&mut page, &scenario, tenants),
        None => show_variants(&mut page, &scenario),
    }
    // A pipe cannot be read again.
    if bundled().iter().any(|(bundled, _)| *bundled == name) || Path::new(name).is_file() {
        page.gap();
        let command = Line::new("evenkeel scenario show", &[]).on(&name, " --toml", &[]);
        page.line(&format!("`{command}` prints the file."));
    }
    print_page(page)?;
    Ok(Exit::Done)
}

/// Returns the lines of the summary as label and text: link, traffic, TCP, senders, measurement, paper and
/// groups.
fn outline(scenario: &Scenario) -> Vec<(&'static str, String)> {
    let Scenario { link, workload, measure, .. } = scenario;
    let mut link_text = link.rate.to_string();
    // Scenarios of transfers set MTU and queues per variant.
    if !matches!(workload.kind, WorkloadKind::Transfers) {
        link_text.push_str(&format!(", {}, MTU {}", counted(link.queues as usize, "queue"), link.mtu));
    }
    if let Some(queues) = link.receive_queues {
        link_text.push_str(&format!(", {}", counted(queues as usize, "receive queue")));
    }
    let traffic = match &workload.kind {
        WorkloadKind::Bulk => {
            let flows = counted(workload.flows as usize, "flow");
            let cores = counted(scenario.hosts.sending_cores as usize, "core");
            format!("{flows} from {cores} of one host to another, always backlogged")
        }
        WorkloadKind::Shuffle { bytes_per_flow } => {
            let hosts = counted(scenario.hosts.count as usize, "host");
            format!(
                "each of {hosts} sends {bytes_per_flow} to every other host; the run ends when all transfers are complete"
            )
        }
        WorkloadKind::Fetch { clients } => {
            format!("{} fetch values from a server", counted(clients.len(), "group") + " of clients")
        }
        WorkloadKind::Requests(requests) => format!(
            "{} of UDP clients on {} ask a server",
            counted(requests.clients.len(), "group"),
            counted(requests.client_hosts as usize, "host")
        ),
        WorkloadKind::Transfers => {
            "bulk flows to hosts whose processors, memory and rings are modelled".to_owned()
        }
        WorkloadKind::Tenants(_) => "clients share the link behind one qdisc at a time".to_owned(),
    };
    let mut measured = counted(measure.repeats as usize, "repeat");
    // A shuffle has no warm-up.
    if workload.shuffled_bytes().is_none() {
        measured.push_str(&format!(", warm-up {}", measure.warmup));
    }
    if let Some(length) = measure.length {
        measured.push_str(&format!(", {length} each"));
    } else if let Some(longest) = measure.windows.last() {
        measured.push_str(&format!(
            ", {} of {} each",
            counted(measure.long_windows as usize, "window"),
            longest.length
        ));
    }
    if !measure.windows.is_empty() {
        let lengths: Vec<String> = measure.windows.iter().map(|window| window.length.to_string()).collect();
        measured.push_str(&format!(", fairness over {}", lengths.join(", ")));
    }
    let mut lines = vec![("link", link_text), ("traffic", traffic)];
    // Scenarios of transfers set the congestion control per variant, and UDP has none.
    if !matches!(workload.kind, WorkloadKind::Transfers | WorkloadKind::Requests(_)) {
        lines.push(("TCP", workload.congestion_control.clone()));
    }
    lines.extend(senders(workload));
    lines.push(("measured", measured));
    if let Some(paper) = &scenario.paper {
        lines.push(("paper", paper.source.clone()));
    }
    // The groups of a sweep are its qdiscs, which are shown with their setups.
    for (name, members) in scenario.groups.iter().filter(|_| scenario.workload.tenants().is_none()) {
        lines.push(("group", format!("{name}: {}", members.join(", "))));
    }
    lines
}

/// Returns a line for each group of clients or bulk senders, and for the probes.
fn senders(workload: &Workload) -> Vec<(&'static str, String)> {
    let clients: Vec<String> = match &workload.kind {
        WorkloadKind::Fetch { clients } => clients.iter().map(fetching).collect(),
        WorkloadKind::Requests(requests) => requests.clients.iter().map(requesting).collect(),
        WorkloadKind::Tenants(tenants) => bulk_groups(tenants),
        WorkloadKind::Bulk | WorkloadKind::Shuffle { .. } | WorkloadKind::Transfers => Vec::new(),
    };
    let label = if workload.tenants().is_some() { "bulk" } else { "clients" };
    let mut lines: Vec<(&'static str, String)> = clients.into_iter().map(|text| (label, text)).collect();
    if let Some(probe) = &workload.latency {
        lines.push(("probe", format!("requests of {} for {}", probe.message, probe.duration)));
    }
    if let Some(probes) = workload.tenants().and_then(|tenants| tenants.probes) {
        let mut text = match probes.count {
            Some(count) => format!("{}, ", counted(count as usize, "probe")),
            None => "number from the axis probes, ".to_owned(),
        };
        match probes.message {
            Some(message) => text.push_str(&format!("requests of {message}")),
            None => text.push_str("request size from the axis message"),
        }
        if let Some(slo) = probes.slo {
            text.push_str(&format!(", SLO {slo}"));
        }
        lines.push(("probes", text));
    }
    lines
}

fn fetching(group: &ClientGroup) -> String {
    let sizes: Vec<String> = group.sizes.iter().map(ToString::to_string).collect();
    let timed = if group.timed { "" } else { "; not timed" };
    format!("{}, values of {}{timed}", counted(group.count as usize, "client"), sizes.join(", "))
}

fn requesting(group: &RequestClients) -> String {
    let mut text = format!(
        "{}: {}, {} each, {} outstanding per flow",
        group.name,
        counted(group.count as usize, "client"),
        counted(group.flows as usize, "flow"),
        group.outstanding
    );
    if group.high_priority {
        text.push_str(", high priority");
    }
    if group.from.as_u64() > 0 {
        text.push_str(&format!(", from {}", group.from));
    }
    if let Some(stay) = group.stay {
        text.push_str(&format!(", for {stay}"));
    }
    if let Some(variants) = &group.variants {
        text.push_str(&format!(", only in {}", variants.join(", ")));
    }
    text
}

/// Returns a line about the bulk senders of each group. The number of senders is fixed, or depends on the
/// axis `clients`.
fn bulk_groups(tenants: &Tenants) -> Vec<String> {
    let axis = tenants.axes.iter().find(|axis| axis.name == "clients");
    let clients = || axis.iter().flat_map(|axis| &axis.values).filter_map(|value| value.parse().ok());
    let text = |(number, group): (usize, &BulkGroup)| {
        let mut text = match group.count {
            GroupCount::Fixed(count) => counted(count as usize, "sender"),
            GroupCount::Share(100) => "all clients".to_owned(),
            GroupCount::Share(share) => {
                let counts =
                    clients().map(|clients| BulkGroup::counts(&tenants.bulk, clients)[number].to_string());
                format!("{share}% of the clients ({})", counts.collect::<Vec<_>>().join(", "))
            }
        };
        match group.length {
            Some(length) => text.push_str(&format!(", writes of {length}")),
            None => text.push_str(", write size from the axis length"),
        }
        if let Some(OnOff { on, off }) = group.on_off {
            text.push_str(&format!(", sending for {on}, silent for {off}"));
        }
        text
    };
    tenants.bulk.iter().enumerate().map(text).collect()
}

/// Shows the axes of a sweep, and the definition of each qdisc.
fn show_points(page: &mut Page, scenario: &Scenario, tenants: &Tenants) {
    let (all, chosen) = (scenario.all_variants().count(), scenario.variants.len());
    page.heading(&match all == chosen {
        true => format!("{}, with these values:", counted(all, "variant")),
        false => format!(
            "{}, with these values; a run without --variant takes {chosen} of them:",
            counted(all, "variant")
        ),
    });
    for axis in &tenants.axes {
        page.labelled(&format!("  {:<12}", axis.name), &axis.values.join(", "));
    }
    page.heading("Qdisc setups:");
    let mut shown: Vec<&str> = Vec::new();
    for point in scenario.all_variants().filter_map(|variant| variant.tenants()) {
        if shown.contains(&point.qdisc.name.as_str()) {
            continue;
        }
        shown.push(&point.qdisc.name);
        page.line(&format!("  {}", point.qdisc.name));
        for line in point.qdisc.lines() {
            page.shell(6, &line);
        }
    }
}

fn show_variants(page: &mut Page, scenario: &Scenario) {
    let all: Vec<(&Variant, Vec<(&'static str, String)>)> =
        scenario.all_variants().map(|variant| (variant, variant.settings())).collect();
    let is_shared = |setting: &(&'static str, String)| all.iter().all(|(_, own)| own.contains(setting));
    let rows = |settings: &[(&'static str, String)]| -> Vec<Vec<String>> {
        settings.iter().map(|(key, value)| vec![(*key).to_owned(), value.clone()]).collect()
    };
    let columns = [Heading::text("setting"), Heading::text("value")];
    if let Some((_, first)) = all.first() {
        let shared: Vec<(&'static str, String)> =
            first.iter().filter(|setting| is_shared(setting)).cloned().collect();
        if !shared.is_empty() {
            page.heading("Settings of every variant:");
            page.table(&columns, &rows(&shared));
        }
    }
    page.heading(&format!(
        "{}, and {} by name:",
        counted(scenario.variants.len(), "variant"),
        counted(scenario.further_variants.len(), "more variant")
    ));
    for (variant, settings) in &all {
        let base = variant.base.as_ref().and_then(|base| all.iter().find(|(known, _)| known.name == *base));
        let changed = settings.iter().filter(|setting| match base {
            Some((_, base)) => !base.contains(setting),
            None => !is_shared(setting),
        });
        let changed: Vec<String> = changed.map(|(key, value)| format!("{key} = {value}")).collect();
        let base = variant.base.as_ref().map(|base| format!(" (base: {base})")).unwrap_or_default();
        page.line(&format!("  {}{base}: {}", variant.name, variant.summary));
        if !changed.is_empty() {
            page.labelled("      ", &changed.join("; "));
        }
    }
}

fn check(files: &[std::path::PathBuf]) -> Result<Exit, Failure> {
    let mut exit = Exit::Done;
    for file in files {
        match load_file(file, None) {
            Ok(loaded) => {
                let mut page = page();
                page.line(&format!(
                    "{}: {} is a valid scenario with {}",
                    shown(file),
                    loaded.scenario.name,
                    counted(loaded.scenario.variants.len(), "variant")
                ));
                print_page(page)?;
            }
            Err(failure) if failure.exit() == Exit::Interrupted => return Err(failure),
            Err(failure) => exit = failure.tell(),
        }
    }
    Ok(exit)
}
