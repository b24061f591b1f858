// The bulk load of ./dev bench sim in ns-3, as similar as ns-3 allows.
//
// Prints delivered packets of 1500 bytes per second of CPU time. On Debian and Ubuntu, with libns3-dev and
// g++:
//
//     modules=$(printf 'ns3-%s ' core network internet point-to-point applications traffic-control)
//     c++ -std=c++17 -O3 bench/ns3/bulk.cc -o ns3-bulk $(pkg-config --cflags $modules) \
//       $(pkg-config --libs-only-L --libs-only-l $modules)
//     ./ns3-bulk [--flows=12] [--warmup=0.05] [--duration=0.1]
//
// Two hosts, a line of 10 Gbit/s and 2 us, bulk TCP flows with CUBIC, SACK and a send buffer of 4 MiB.
// Differences from Evenkeel's simulator:
//
// - ns-3 has no TSO, GSO or GRO: TCP, qdisc and device process each packet separately.
// - Its point-to-point device has one transmit queue instead of eight. Byte queue limits and TCP small
//   queues are not in use: the qdisc with 1000 packets fills and drops packets.
// - CPUs, interrupts and interrupt moderation are not modelled.
// - Packets have real headers, unlike Evenkeel's. On the link, a packet of 1500 bytes takes 1502 bytes (PPP)
//   instead of 1538 (Ethernet).
//
// So this program measures the cost of a packet in a general network simulator. It does not compare two
// implementations of the same model.

#include <ctime>
#include <iostream>

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

using namespace ns3;

namespace
{

// Payload of a packet of 1500 bytes: 20 of IP, 20 of TCP, 12 of timestamps.
constexpr uint32_t kPayloadBytes = 1448;
constexpr uint16_t kPort = 5000;

double ProcessorSeconds()
{
	return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// Returns the payload that all sinks have received, bytes.
uint64_t Received(const ApplicationContainer &sinks)
{
	uint64_t bytes = 0;
	for (uint32_t number = 0; number < sinks.GetN(); ++number) {
		bytes += DynamicCast<PacketSink>(sinks.Get(number))->GetTotalRx();
	}
	return bytes;
}

void SetDefaults()
{
	Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TcpCubic::GetTypeId()));
	Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(kPayloadBytes));
	Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(4 << 20));
	Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(8 << 20));
	Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
	Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(2));
	// The qdisc holds up to 1000 packets, as with tx_queue_len; the device below it holds only a few.
	Config::SetDefault("ns3::PfifoFastQueueDisc::MaxSize", QueueSizeValue(QueueSize("1000p")));
	Config::SetDefault("ns3::DropTailQueue<Packet>::MaxSize", QueueSizeValue(QueueSize("100p")));
}

} // namespace

int main(int argc, char *argv[])
{
	uint32_t flows = 12;
	double warmup = 0.05;
	double duration = 0.1;
	CommandLine arguments(__FILE__);
	arguments.AddValue("flows", "bulk TCP flows", flows);
	arguments.AddValue("warmup", "simulated seconds before the measurement", warmup);
	arguments.AddValue("duration", "simulated seconds that are measured", duration);
	arguments.Parse(argc, argv);

	SetDefaults();
	NodeContainer hosts(2);
	PointToPointHelper line;
	line.SetDeviceAttribute("DataRate", StringValue("10Gbps"));
	line.SetChannelAttribute("Delay", StringValue("2us"));
	const NetDeviceContainer devices = line.Install(hosts);
	InternetStackHelper().Install(hosts);
	TrafficControlHelper qdisc;
	qdisc.SetRootQueueDisc("ns3::PfifoFastQueueDisc");
	qdisc.Install(devices);
	Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
	const Ipv4InterfaceContainer interfaces = addresses.Assign(devices);

	ApplicationContainer sinks;
	for (uint32_t flow = 0; flow < flows; ++flow) {
		const auto port = static_cast<uint16_t>(kPort + flow);
		PacketSinkHelper sink("ns3::TcpSocketFactory",
				      InetSocketAddress(Ipv4Address::GetAny(), port));
		sinks.Add(sink.Install(hosts.Get(1)));
		BulkSendHelper source("ns3::TcpSocketFactory",
				      InetSocketAddress(interfaces.GetAddress(1), port));
		source.SetAttribute("MaxBytes", UintegerValue(0));
		source.Install(hosts.Get(0)).Start(MicroSeconds(1 + flow));
	}

	Simulator::Stop(Seconds(warmup));
	Simulator::Run();
	const uint64_t before = Received(sinks);
	const double begun = ProcessorSeconds();
	Simulator::Stop(Seconds(duration));
	Simulator::Run();
	const double took = ProcessorSeconds() - begun;
	const double bytes = static_cast<double>(Received(sinks) - before);
	Simulator::Destroy();

	const double packets = bytes / kPayloadBytes;
	std::cout << "ns-3: " << flows << " flows, " << duration
		  << " s simulated: " << static_cast<uint64_t>(packets) << " packets ("
		  << bytes * 8 / duration / 1e9 << " Gbit/s of payload) in " << took << " s, "
		  << packets / took / 1e6 << " million packets for each second of processor time\n";
	return bytes > 0 ? 0 : 1;
}
