//! Converts the text of a model to its graph and tables.

use std::collections::BTreeMap;
use std::ops::Range;

use evenkeel_model::scenario::ScenarioErrorKind::{BadValue, Cycle, Duplicate, MissingKey, UnknownName};
use evenkeel_model::scenario::document::{Complaints, Field, Table, document, read_schema};
use evenkeel_model::scenario::{ScenarioError, ScenarioErrorKind};

use super::graph::{Graph, Node, NodeId, NodeKind, Operand, Port, TRUE};
use super::model::Parts;
use super::predicate::Predicate;
use super::program::Program;
use super::read_table::{self, TableDraft};
use super::rss::Rss;
use crate::filter::{QueueId, TableId};

/// Maximum number of nodes, which bounds the work for a hostile file.
const MOST_NODES: usize = 256;
/// Maximum length of title and source, bytes.
const LONGEST_TITLE: usize = 100;
const LONGEST_SOURCE: usize = 1000;

/// A node whose edges are names, not resolved yet.
struct Draft<'t> {
    name: String,
    span: Range<usize>,
    path: String,
    kind: DraftKind<'t>,
    ports: Vec<DraftPort<'t>>,
}

enum DraftKind<'t> {
    Plain(NodeKind),
    And(Vec<Name<'t>>),
    Or(Vec<Name<'t>>),
}

struct DraftPort<'t> {
    name: String,
    when: Option<Predicate>,
    to: Vec<Name<'t>>,
}

/// The name of a node, or of a node and its port, with its position.
struct Name<'t> {
    text: &'t str,
    field: Field<'t>,
}

/// Parses a model. `origin` names the text in errors.
pub(super) fn read(text: &str, origin: &str) -> Result<Parts, ScenarioError> {
    let tree = document(text, origin)?;
    let complaints = Complaints::new(text, origin);
    let mut root = Table::root(tree.get_ref(), &complaints);
    read_schema(&mut root);
    let name =
        root.require("name", "for example name = \"i82599\"").and_then(|field| field.name("a name", "-"));
    let title = root.require("title", "for example title = \"Intel 82599\"");
    let title = title.and_then(|field| field.prose(LONGEST_TITLE, false));
    let source = root.require("source", "say where the facts are from");
    let source = source.and_then(|field| field.prose(LONGEST_SOURCE, true));
    let drivers = root.take("drivers").map(|field| {
        let name = |field: Field<'_>| field.name("a driver's name", "-_");
        field.list("names of drivers").map(|list| list.into_iter().filter_map(name).collect())
    });
    let queues = root.require("queues", "for example queues = 128").and_then(|field| field.integer(1..=4096));
    let mut reader =
        Reader { drafts: Vec::new(), tables: Vec::new(), rss: None, queues: queues.unwrap_or(1) };
    reader.nodes(&mut root);
    root.finish();
    let mut parts = None;
    if complaints.is_empty() {
        let tables = read_table::resolve(&reader.tables);
        if let Some(graph) = resolve(&reader.drafts, &complaints).filter(|_| complaints.is_empty()) {
            match Program::of(&graph, tables.len()) {
                Ok(program) => {
                    let queues = u16::try_from(reader.queues).unwrap_or(u16::MAX);
                    let (name, title) = (name.unwrap_or_default(), title.unwrap_or_default());
                    let (source, rss) = (source.unwrap_or_default(), reader.rss);
                    let drivers = drivers.flatten().unwrap_or_default();
                    parts = Some(Parts { name, title, source, drivers, queues, tables, rss, graph, program });
                }
                Err(fault) => {
                    let name =
                        fault.node.and_then(|node| graph.nodes().get(node.index())).map(|node| &node.name);
                    let draft = reader.drafts.iter().find(|draft| Some(&draft.name) == name);
                    let (span, path) = draft.map_or((0..0, ""), |draft| (draft.span.clone(), &*draft.path));
                    complaints.push(BadValue, &span, path, fault.problem, "");
                }
            }
        }
    }
    match (complaints.into_error(), parts) {
        (None, Some(parts)) => Ok(parts),
        (Some(error), _) => Err(error),
        // Cannot happen: each missing part has been reported as an error.
        (None, None) => Err(ScenarioError {
            kind: ScenarioErrorKind::Syntax,
            origin: origin.to_owned(),
            line: 1,
            column: 1,
            key: String::new(),
            problem: "this is not a model of a NIC".to_owned(),
            advice: String::new(),
        }),
    }
}

struct Reader<'t> {
    drafts: Vec<Draft<'t>>,
    tables: Vec<TableDraft>,
    rss: Option<Rss>,
    queues: u32,
}

impl<'t> Reader<'t> {
    fn nodes(&mut self, root: &mut Table<'t>) {
        if let Some(field) =
            root.require("wire", "name the first node that each packet reaches: wire = \"...\"")
        {
            let to = names(&field).unwrap_or_default();
            let port = DraftPort { name: "out".to_owned(), when: None, to };
            self.add("wire", &field, DraftKind::Plain(NodeKind::Source), vec![port]);
        }
        self.each(root.take("function"), Self::function);
        self.each(root.take("operator"), Self::operator);
        self.each(root.take("table"), Self::table);
        self.each(root.take("rss"), Self::rss);
        let advice =
            "define the queue for packets that no filter and no hash steers: [queue.default] number = 0";
        self.each(root.require("queue", advice), Self::queue);
    }

    /// Calls `read` for each node of one kind.
    fn each(&mut self, field: Option<Field<'t>>, read: impl Fn(&mut Self, &str, &Field<'t>, Table<'t>)) {
        let Some(table) = field.and_then(|field| field.table()) else { return };
        for (name, field) in table.entries() {
            let key = field.at_key();
            if !key.check_name(name, "-") {
                continue;
            }
            if self.drafts.len() >= MOST_NODES {
                key.complain(BadValue, format!("the model has more than {MOST_NODES} nodes"), "remove nodes");
                return;
            }
            if self.drafts.iter().any(|draft| draft.name == name) {
                key.complain(Duplicate, "another node has this name", "choose another name");
                continue;
            }
            if let Some(table) = field.table() {
                read(self, name, &field, table);
            }
        }
    }

    fn add(&mut self, name: &str, field: &Field<'t>, kind: DraftKind<'t>, ports: Vec<DraftPort<'t>>) {
        let (span, path) = (field.at_key().span(), field.path().to_owned());
        self.drafts.push(Draft { name: name.to_owned(), span, path, kind, ports });
    }

    fn function(&mut self, name: &str, field: &Field<'t>, mut table: Table<'t>) {
        let ports =
            table.require("port", "for example port.ip = { when = \"ether-type = ipv4\", to = \"rss\" }");
        let ports = ports.and_then(|ports| ports.table());
        table.finish();
        let Some(ports) = ports else { return };
        let read: Vec<_> = ports.entries().filter_map(|(name, field)| port(name, &field)).collect();
        if read.iter().filter(|port| port.when.is_none()).count() > 1 {
            field.at_key().complain(
                BadValue,
                "more than one port without 'when'",
                "only one port may omit 'when': it receives the packets that match no other port",
            );
        }
        self.add(name, field, DraftKind::Plain(NodeKind::Function), read);
    }

    fn operator(&mut self, name: &str, field: &Field<'t>, mut table: Table<'t>) {
        let all = table.take("all");
        let any = table.take("any");
        let to = |field: Option<Field<'t>>| field.and_then(|field| names(&field)).unwrap_or_default();
        let ports = ["true", "false"].map(|name| {
            let to = to(table.take(name));
            DraftPort { name: name.to_owned(), when: None, to }
        });
        table.finish();
        let kind = match (all, any) {
            (Some(all), None) => DraftKind::And(to(Some(all))),
            (None, Some(any)) => DraftKind::Or(to(Some(any))),
            _ => {
                let advice = "write all = [\"NODE.PORT\", ...] for AND, or any = [...] for OR";
                field.at_key().complain(
                    MissingKey,
                    "an operator needs exactly one of 'all' and 'any'",
                    advice,
                );
                return;
            }
        };
        self.add(name, field, kind, ports.into());
    }

    fn table(&mut self, name: &str, field: &Field<'t>, mut table: Table<'t>) {
        let miss =
            table.require("miss", "name the node for packets that match no filter").and_then(|to| names(&to));
        let earlier: Vec<&str> = self.tables.iter().map(|table| table.name.as_str()).collect();
        if let Some(draft) = read_table::read(name, field, table, &earlier, self.queues) {
            // No truncation: below `MOST_NODES`.
            let id = TableId(self.tables.len() as u16);
            self.tables.push(draft);
            let kind = DraftKind::Plain(NodeKind::Table(id));
            self.add(name, field, kind, steering_ports(miss.unwrap_or_default()));
        }
    }

    fn rss(&mut self, name: &str, field: &Field<'t>, mut table: Table<'t>) {
        let miss =
            table.require("miss", "name the node for packets while RSS is off").and_then(|to| names(&to));
        if self.rss.is_some() {
            field.at_key().complain(
                Duplicate,
                "a second RSS node",
                "a model has one hash function and one indirection table: remove this node",
            );
            return;
        }
        if let Some(rss) = read_table::read_rss(table, self.queues) {
            self.rss = Some(rss);
            self.add(name, field, DraftKind::Plain(NodeKind::Rss), steering_ports(miss.unwrap_or_default()));
        }
    }

    fn queue(&mut self, name: &str, field: &Field<'t>, mut table: Table<'t>) {
        let number = table.require("number", "for example number = 0");
        let number = number.and_then(|field| field.integer(0..=self.queues.saturating_sub(1)));
        table.finish();
        let queue = number.and_then(|number| u16::try_from(number).ok()).map(QueueId);
        self.add(name, field, DraftKind::Plain(NodeKind::Queue(queue.unwrap_or_default())), Vec::new());
    }
}

fn steering_ports(miss: Vec<Name<'_>>) -> Vec<DraftPort<'_>> {
    let port = |name: &str, to| DraftPort { name: name.to_owned(), when: None, to };
    vec![port("hit", Vec::new()), port("miss", miss)]
}

fn names<'t>(field: &Field<'t>) -> Option<Vec<Name<'t>>> {
    let name = |field: Field<'t>| {
        let text = field.string("a node's name")?;
        Some(Name { text, field })
    };
    if field.is_list() {
        field.list("node names")?.into_iter().map(name).collect()
    } else {
        Some(vec![name(field.clone())?])
    }
}

fn port<'t>(name: &str, field: &Field<'t>) -> Option<DraftPort<'t>> {
    if !field.at_key().check_name(name, "-") {
        return None;
    }
    let mut table = field.table()?;
    let when = table.take("when").map(|field| predicate(&field));
    let to = table.take("to").and_then(|field| names(&field)).unwrap_or_default();
    table.finish();
    // An invalid predicate has been reported. Without a predicate the port would take all remaining packets.
    let when = when.map(|when| when.unwrap_or(Predicate::Or(Vec::new())));
    Some(DraftPort { name: name.to_owned(), when, to })
}

fn predicate(field: &Field<'_>) -> Option<Predicate> {
    let text = field.string("a predicate, such as \"ether-type = ipv4\"")?;
    match Predicate::parse(text) {
        Ok(predicate) => Some(predicate),
        Err(error) => {
            field.complain_within(BadValue, error.offset, error.problem, "");
            None
        }
    }
}

/// Replaces names by edges, and sorts the nodes topologically.
fn resolve(drafts: &[Draft<'_>], complaints: &Complaints<'_>) -> Option<Graph> {
    let by_name: BTreeMap<&str, usize> =
        drafts.iter().enumerate().map(|(index, draft)| (draft.name.as_str(), index)).collect();
    let known = drafts.iter().map(|draft| draft.name.as_str());
    let find = |name: &Name<'_>, text: &str| {
        let found = by_name.get(text).copied();
        if found.is_none() {
            name.field.unknown_name("node", text, known.clone());
        }
        found
    };
    let mut edges: Vec<(usize, usize)> = Vec::new();
    let mut entries = vec![0_usize; drafts.len()];
    let mut nodes = Vec::new();
    for (index, draft) in drafts.iter().enumerate() {
        let mut ports = Vec::new();
        for port in &draft.ports {
            let mut to = Vec::new();
            for name in &port.to {
                let Some(target) = find(name, name.text) else { continue };
                if matches!(drafts[target].kind, DraftKind::And(_) | DraftKind::Or(_)) {
                    let advice = format!(
                        "list \"{}.{}\" as an operand of that operator instead",
                        draft.name, port.name
                    );
                    name.field.complain(BadValue, format!("'{}' is an operator", name.text), advice);
                }
                edges.push((index, target));
                entries[target] += 1;
                to.push(NodeId(target as u16));
            }
            ports.push(Port { name: port.name.clone(), when: port.when.clone(), to });
        }
        let mut operands = |names: &[Name<'_>]| -> Vec<Operand> {
            let mut found = Vec::new();
            for name in names {
                if let Some(operand) = operand(name, drafts, &find) {
                    edges.push((operand.node.index(), index));
                    found.push(operand);
                }
            }
            entries[index] = found.len();
            found
        };
        let kind = match &draft.kind {
            DraftKind::Plain(kind) => kind.clone(),
            DraftKind::And(names) => NodeKind::And(operands(names)),
            DraftKind::Or(names) => NodeKind::Or(operands(names)),
        };
        nodes.push(Node { name: draft.name.clone(), kind, ports });
    }
    for (draft, entries) in drafts.iter().zip(&entries) {
        let complain = |problem: &str, advice: &str| {
            complaints.push(BadValue, &draft.span, &draft.path, problem, advice);
        };
        match (&draft.kind, entries) {
            (DraftKind::Plain(NodeKind::Source), 0) => {}
            (DraftKind::Plain(NodeKind::Source), _) => {
                complain("a node leads back to 'wire', the source of all packets", "")
            }
            (DraftKind::And(_) | DraftKind::Or(_), 0) => {
                complain(
                    "the operator has no operands",
                    "list ports of functions, such as \"is-ip.yes\", in 'any' or 'all'",
                );
            }
            (_, 0) => {
                complain(
                    "nothing leads to this node",
                    "name it in 'wire', or in 'to' or 'miss' of another node",
                );
            }
            (DraftKind::Plain(NodeKind::Queue(_)) | DraftKind::And(_) | DraftKind::Or(_), _) | (_, 1) => {}
            _ => complain("more than one edge leads to this node", "join the edges with an operator first"),
        }
    }
    let order = sorted(drafts, &edges, complaints)?;
    Some(reordered(&nodes, &order))
}

/// Resolves `NODE.PORT`.
fn operand(
    name: &Name<'_>,
    drafts: &[Draft<'_>],
    find: &impl Fn(&Name<'_>, &str) -> Option<usize>,
) -> Option<Operand> {
    let Some((node, port)) = name.text.split_once('.') else {
        let problem = format!("'{}' names no port", name.text.escape_debug());
        name.field.complain(BadValue, problem, "write the operand as \"NODE.PORT\"");
        return None;
    };
    let node = find(name, node)?;
    let ports = drafts[node].ports.iter().map(|port| port.name.as_str());
    let Some(found) = ports.clone().position(|known| known == port) else {
        name.field.unknown_name("port", port, ports);
        return None;
    };
    let is_configuration = matches!(drafts[node].kind, DraftKind::Plain(NodeKind::Table(_) | NodeKind::Rss));
    if is_configuration && found == TRUE {
        name.field.complain(
            UnknownName,
            "the port \"hit\" of a table or of RSS leads to a queue, not to an operator",
            "use the port \"miss\"",
        );
        return None;
    }
    Some(Operand { node: NodeId(node as u16), port: found })
}

/// Returns the nodes in topological order; reports an error and returns `None` if there is a cycle.
fn sorted(drafts: &[Draft<'_>], edges: &[(usize, usize)], complaints: &Complaints<'_>) -> Option<Vec<usize>> {
    let mut waiting = vec![0_usize; drafts.len()];
    for (_, to) in edges {
        waiting[*to] += 1;
    }
    let mut order = Vec::new();
    while let Some(next) = (0..drafts.len()).find(|node| waiting[*node] == 0 && !order.contains(node)) {
        order.push(next);
        for (_, to) in edges.iter().filter(|(from, _)| *from == next) {
            waiting[*to] -= 1;
        }
    }
    if order.len() == drafts.len() {
        return Some(order);
    }
    // Each remaining node has a remaining predecessor. So a walk to predecessors reaches a cycle from
    // any remaining node.
    let left = |node: &usize| !order.contains(node);
    let before =
        |node: usize| edges.iter().find(|(from, to)| *to == node && left(from)).map(|(from, _)| *from);
    let mut way: Vec<usize> = Vec::new();
    let mut node = (0..drafts.len()).find(left)?;
    while !way.contains(&node) {
        way.push(node);
        node = before(node)?;
    }
    let begin = way.iter().position(|passed| *passed == node).unwrap_or(0);
    let cycle: Vec<&str> = way[begin..].iter().rev().map(|node| drafts[*node].name.as_str()).collect();
    let first = way[begin..].iter().min_by_key(|node| drafts[**node].span.start)?;
    let problem = format!("these nodes form a loop: {}", cycle.join(", "));
    complaints.push(Cycle, &drafts[*first].span, &drafts[*first].path, problem, "");
    None
}

fn reordered(nodes: &[Node], order: &[usize]) -> Graph {
    let mut place = vec![NodeId(0); nodes.len()];
    for (position, node) in order.iter().enumerate() {
        place[*node] = NodeId(position as u16);
    }
    let renumbered = |node: &Node| {
        let mut node = node.clone();
        for to in node.ports.iter_mut().flat_map(|port| &mut port.to) {
            *to = place[to.index()];
        }
        if let NodeKind::And(operands) | NodeKind::Or(operands) = &mut node.kind {
            for operand in operands {
                operand.node = place[operand.node.index()];
            }
        }
        node
    };
    Graph { nodes: order.iter().map(|node| renumbered(&nodes[*node])).collect() }
}
