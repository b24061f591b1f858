//! `evenkeel nic`: lists NIC models, draws them, and picks one for a device.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use evenkeel_files::{Kind, Text};
use evenkeel_host::{Ethtool, Sysfs};
use evenkeel_model::text::{counted, path_text};
use evenkeel_receive::{
    ConfiguredGraph, ConfiguredNic, DeviceFacts, Drawing, FieldMatch, FilterTable, FlowTuple, Header,
    NicModel, Precedence, Transport,
};
use evenkeel_report::page::Page;

use crate::arguments::{ModelDirectory, NicCommand, NicShowOptions, NicSource};
use crate::exit::{Exit, Failure, print, print_page};
use crate::input;
use crate::progress::page;

pub fn nic(command: &NicCommand) -> Result<Exit, Failure> {
    match command {
        NicCommand::List { source } => list(source),
        NicCommand::Show(options) => show(options),
        NicCommand::Probe { interface, source } => probe(interface, source),
    }
}

/// Loads a model from a file, from standard input (`-`), or by its name. Searches a name in the user's
/// directory of models, if given, then in Evenkeel's models.
pub fn load(name: &str, source: &NicSource) -> Result<NicModel, Failure> {
    let path = Path::new(name);
    if name == "-" || path.extension().is_some() || name.contains('/') {
        return parse_model(&input::read(path, Kind::NicModel)?);
    }
    let models = known(source)?;
    if let Some(known) = models.iter().find(|known| known.model.name() == name) {
        return Ok(known.model.clone());
    }
    let otherwise = match source.directory() {
        Some(directory) => {
            format!("or give a path to a TOML file; evenkeel also searched {}", path_text(&directory.path))
        }
        None => "or give a path to a TOML file, or a directory of models with --nic-dir".to_owned(),
    };
    Err(Failure::unknown("NIC model", name, models.iter().map(|known| known.model.name()), &otherwise))
}

/// Returns the file of a model in the user's directory of models. Reads the directory even if it lacks
/// the model: a misspelt directory must not lead to the bundled model.
pub fn own_file(name: &str, source: &NicSource) -> Result<Option<PathBuf>, Failure> {
    Ok(known(source)?.into_iter().find(|known| known.model.name() == name).and_then(|known| known.path))
}

fn parse_model(text: &Text) -> Result<NicModel, Failure> {
    NicModel::parse(&text.text, &text.origin).map_err(|error| Failure::new(Exit::Usage, error))
}

struct Known {
    model: NicModel,
    /// The model's file; `None` for a bundled model.
    path: Option<PathBuf>,
}

fn known(source: &NicSource) -> Result<Vec<Known>, Failure> {
    let mut models = Vec::new();
    for name in NicModel::built_in_names() {
        let text = NicModel::built_in_text(name).unwrap_or_default();
        let model = NicModel::parse(text, name).map_err(|error| Failure::new(Exit::Usage, error))?;
        models.push(Known { model, path: None });
    }
    if let Some(directory) = source.directory() {
        let mut own: Vec<Known> = Vec::new();
        for path in model_files(&directory)? {
            let model = parse_model(&evenkeel_files::read_regular(&path, Kind::NicModel)?)?;
            if let Some(other) = own.iter().find(|other| other.model.name() == model.name()) {
                let other = other.path.as_deref().map(path_text).unwrap_or_default();
                let message = format!(
                    "{}: the model has the name '{}', as has {other}; rename one of the two",
                    path_text(&path),
                    model.name()
                );
                return Err(Failure::new(Exit::Usage, message));
            }
            models.retain(|known| known.model.name() != model.name());
            own.push(Known { model, path: Some(path) });
        }
        models.extend(own);
    }
    models.sort_by(|one, other| one.model.name().cmp(other.model.name()));
    Ok(models)
}

fn list(source: &NicSource) -> Result<Exit, Failure> {
    let models = known(source)?;
    let widest = models.iter().map(|known| known.model.name().len()).max().unwrap_or(0);
    let mut page = page();
    page.answer(&format!(
        "{}: `evenkeel nic probe INTERFACE` picks one, `evenkeel nic show NAME` shows it.",
        counted(models.len(), "NIC model")
    ));
    page.gap();
    for Known { model, path } in &models {
        let place = path.as_ref().map(|path| format!(" ({})", path_text(path))).unwrap_or_default();
        page.labelled(&format!("{:widest$}  ", model.name()), &format!("{}{place}", model.title()));
    }
    print_page(page)?;
    Ok(Exit::Done)
}

fn facts(interface: &str) -> Result<DeviceFacts, Failure> {
    let sysfs = Sysfs::of_namespace().map_err(|error| Failure::with_causes(Exit::Unable, &error))?;
    let is_path = interface.contains('/') || interface.is_empty() || interface.starts_with('.');
    if is_path || !sysfs.path(&format!("class/net/{interface}/ifindex")).exists() {
        let message =
            format!("there is no interface '{}'; `ip link` lists the interfaces", interface.escape_debug());
        return Err(Failure::new(Exit::Usage, message));
    }
    let queues =
        sysfs.receive_queues(interface).map_err(|error| Failure::with_causes(Exit::Unable, &error))?;
    let ethtool = Ethtool::open().map_err(|error| Failure::with_causes(Exit::Unable, &error))?;
    let rules = ethtool.rule_table(interface);
    Ok(DeviceFacts {
        driver: ethtool.driver(interface),
        queues,
        takes_rules: rules.is_some(),
        rule_places: rules.and_then(|rules| rules.places),
        rules_are_on: ethtool.ntuple_is_on(interface),
        rss_entries: ethtool.indirection_entries(interface),
        lacks_xdp: evenkeel_steer::lacks_xdp(interface),
    })
}

fn probe(interface: &str, source: &NicSource) -> Result<Exit, Failure> {
    let facts = facts(interface)?;
    let mut models = known(source)?;
    // The first model for the NIC's driver is picked, so list the user's models first.
    models.sort_by_key(|known| known.path.is_none());
    let models: Vec<NicModel> = models.into_iter().map(|known| known.model).collect();
    let probed = evenkeel_receive::probe(&facts, &models);
    let mut page = page();
    page.answer(&match &probed.model {
        Some(model) => format!("{interface}: {model}"),
        None => format!("{interface}: no NIC model fits this interface; only RPS can steer its packets"),
    });
    for reason in &probed.reasons {
        page.line(&format!("  {reason}"));
    }
    page.line(&format!("  it has {} in use", counted(facts.queues as usize, "receive queue")));
    for remark in &probed.remarks {
        page.line(&format!("note: {}", remark.replace("IFACE", interface)));
    }
    print_page(page)?;
    Ok(Exit::Done)
}

fn model_files(directory: &ModelDirectory) -> Result<Vec<PathBuf>, Failure> {
    let ModelDirectory { path, named_by } = directory;
    let unreadable = |error: std::io::Error| {
        let message = format!("{named_by}: cannot read the directory {}: {error}", path_text(path));
        Failure::new(Exit::Usage, message)
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn show(options: &NicShowOptions) -> Result<Exit, Failure> {
    let model = load(&options.name, &options.source)?;
    let nic = options.config.as_ref().map(|path| configured(&model, path)).transpose()?;
    if options.dot || options.svg {
        let drawing = match &nic {
            Some(nic) => Drawing::of_configured(&ConfiguredGraph::of(nic)),
            None => Drawing::of_model(&model),
        };
        print(&if options.svg { drawing.to_svg() } else { drawing.to_dot() })?;
        return Ok(Exit::Done);
    }
    let mut page = page();
    described(&mut page, &model);
    if let Some(nic) = &nic {
        page.gap();
        page.lines(&configuration(nic));
    }
    print_page(page)?;
    Ok(Exit::Done)
}

fn configured(model: &NicModel, path: &Path) -> Result<ConfiguredNic, Failure> {
    let Text { text, origin } = input::read(path, Kind::NicModel)?;
    model.configured(&text, &origin, model.queues()).map_err(|error| Failure::new(Exit::Usage, error))
}

fn described(page: &mut Page, model: &NicModel) {
    let tables = counted(model.tables().len(), "filter table");
    page.answer(&format!(
        "{}: {}. {}, {tables}.",
        model.name(),
        model.title().trim_end_matches('.'),
        counted(usize::from(model.queues()), "receive queue")
    ));
    page.line(&format!("source: {}", model.source()));
    page.gap();
    match model.rss() {
        Some(rss) => {
            let entries = counted(rss.entries, "entry");
            page.labelled("RSS           ", &format!("{entries}, over queues 0 to {}", rss.queues - 1));
            page.labelled("ports hashed  ", &ports(model));
            if rss.contexts > 0 {
                let further = counted(usize::from(rss.contexts), "further table");
                page.labelled("contexts      ", &format!("{further}, for filters that name a context"));
            }
        }
        None => page.line("RSS           none"),
    }
    for table in model.tables() {
        page.gap();
        page.line(&format!("table {}: {}", table.name, room(model, table)));
        page.labelled("  matches     ", &fields(table));
        if table.fields.one_version {
            page.labelled("  IP version  ", "each filter is for IPv4 or for IPv6");
        }
        page.labelled("  decides     ", &precedence(table));
        if table.spread {
            page.labelled("  queue       ", "one, or a choice by RSS");
        }
    }
    page.heading("Order of the tables; the first match decides the queue:");
    for (kind, header) in kinds() {
        let (way, default) = model.way(&header);
        let way: Vec<String> =
            way.into_iter().map(str::to_owned).chain([format!("queue {default}")]).collect();
        page.labelled(&format!("  {kind:20} "), &way.join(" > "));
    }
}

fn ports(model: &NicModel) -> String {
    let hashed = model.rss().map(|rss| rss.ports).unwrap_or_default();
    let mut named = Vec::new();
    for transport in [Transport::Tcp, Transport::Udp] {
        for (is_ipv6, version) in [(false, "IPv4"), (true, "IPv6")] {
            if hashed.of(transport, is_ipv6) {
                named.push(format!("{transport} over {version}"));
            }
        }
    }
    if named.is_empty() { "none".to_owned() } else { named.join(", ") }
}

fn room(model: &NicModel, table: &FilterTable) -> String {
    let shared = &model.tables()[table.rows.index()].name;
    let mut text = counted(table.capacity, "filter");
    if *shared != table.name {
        let _ = write!(text, ", together with {shared}");
    }
    if let Some(other) = table.excludes {
        let _ = write!(text, ", while {} is empty", model.tables()[other.index()].name);
    }
    text
}

fn fields(table: &FilterTable) -> String {
    let named = table.fields.named();
    let described: Vec<String> = named
        .iter()
        .filter_map(|(name, field)| {
            let how = match field {
                FieldMatch::Ignored => return None,
                FieldMatch::Exact => "",
                FieldMatch::Optional => " (or any)",
                FieldMatch::Prefix => " (or a prefix)",
                FieldMatch::Masked => " (masked)",
                FieldMatch::GlobalMask => " (one mask for all)",
            };
            Some(format!("{name}{how}"))
        })
        .collect();
    let by_signature = if table.signature { ", by a hash that flows may share" } else { "" };
    if described.is_empty() {
        "every packet that reaches the table".to_owned()
    } else {
        described.join(", ") + by_signature
    }
}

fn precedence(table: &FilterTable) -> String {
    match table.precedence {
        Precedence::Unique => "no two filters match the same packet".to_owned(),
        Precedence::Priority { levels } => format!("the highest of priorities 1 to {levels}"),
        Precedence::Location => "the lowest location".to_owned(),
    }
}

fn kinds() -> Vec<(&'static str, Header)> {
    let flow = |transport, address: &str| {
        let address = address.parse().unwrap_or(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
        let flow = FlowTuple {
            transport,
            source: address,
            source_port: 0,
            destination: address,
            destination_port: 0,
        };
        Header::of(&flow)
    };
    let tcp = flow(Transport::Tcp, "127.0.0.1");
    vec![
        ("TCP over IPv4", tcp),
        ("UDP over IPv4", flow(Transport::Udp, "127.0.0.1")),
        ("TCP over IPv6", flow(Transport::Tcp, "::1")),
        ("UDP over IPv6", flow(Transport::Udp, "::1")),
        ("connection request", Header { connection_request: true, ..tcp }),
        ("fragment", Header { fragment: true, ..tcp }),
        ("ARP", Header { ether_type: 0x0806, ..Header::default() }),
    ]
}

fn configuration(nic: &ConfiguredNic) -> String {
    let mut text = format!("configured: {}\n", counted(usize::from(nic.queues()), "queue"));
    let _ = match nic.indirection() {
        [] => writeln!(text, "RSS off"),
        indirection => {
            let queues: Vec<String> = indirection.iter().map(ToString::to_string).collect();
            writeln!(text, "indirection {}", queues.join(" "))
        }
    };
    for (id, filter) in nic.filters() {
        let table = &nic.model().tables()[id.table.index()];
        let to = if filter.spread { "RSS from queue" } else { "queue" };
        let _ = writeln!(
            text,
            "{} {}, priority {}: {} > {to} {}{}",
            table.name,
            id.location,
            filter.priority,
            filter.matches,
            filter.queue,
            if nic.decides(id, filter) {
                ""
            } else {
                " (gets no flow: filters before it take all of its flows)"
            }
        );
    }
    text
}
