package ruleset_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/test/lib/netfilter"
)

// logGroup is the group of nfnetlink_log that BenchmarkRefused reads.
const logGroup = 1037

// BenchmarkRefused sends first packets that are refused or dropped: to the program of the
// previous version, which counted nothing, to that of this version, and to the previous
// one with rules that log, to a reader of the log group. It reports the CPU time of each packet
// (cpu-ns/op), which other load on the machine changes little, and that which the reader takes for
// each second of the flood.
func BenchmarkRefused(b *testing.B) {
	cmd := netfilter.NFTForTest(b)
	p := refusingProgram()
	before := withoutCauses(p)
	for _, way := range []struct {
		name string
		to   netip.AddrPort
		from func(int) netip.Addr
		end  error
	}{
		{"translated", netip.AddrPortFrom(openAddress, firstPort), inRanges(5), translated},
		{"no-endpoints", netip.AddrPortFrom(emptyAddress, firstPort), inRanges(5), dropped},
		{"outside-source-ranges", netip.AddrPortFrom(restrictedAddress, firstPort), inNone(10), dropped},
	} {
		for _, kind := range []struct {
			name    string
			program *nft.Program
			log     string
		}{
			{"uncounted", before, ""},
			{"counted", p, ""},
			{"logged 10 a second", before, "limit rate 10/second burst 10 packets log group 1037 snaplen 64 "},
			{"logged 1000 a second", before, "limit rate 1000/second burst 1000 packets log group 1037 snaplen 64 "},
			{"all logged", before, "log group 1037 snaplen 64 "},
		} {
			b.Run(way.name+"/"+kind.name, func(b *testing.B) {
				s := newSender(b)
				lo, err := s.ns.Handle().LinkByName("lo")
				must(b, err)
				must(b, s.ns.Handle().RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index,
					Dst: &net.IPNet{IP: net.IPv4(10, 96, 0, 0), Mask: net.CIDRMask(16, 32)}, Scope: unix.RT_SCOPE_LINK}))
				if err := cmd.Load(s.ns, logging(kind.program, kind.log)); err != nil {
					if kind.log != "" {
						b.Skipf("the kernel does not log: %v", err)
					}
					b.Fatal(err)
				}
				if kind.log != "" {
					spent := readLog(b, s.ns.Fd())
					defer func() {
						cpu, messages := spent()
						b.ReportMetric(100*cpu.Seconds()/b.Elapsed().Seconds(), "reader-%")
						b.ReportMetric(float64(messages)/b.Elapsed().Seconds(), "messages/s")
					}()
				}
				b.ResetTimer()
				before := processCPU(b)
				s.time(b, b.N, way.from, way.to, way.end)
				b.ReportMetric(float64((processCPU(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// processCPU is the CPU time of this process so far, the kernel's work for it included.
func processCPU(b *testing.B) time.Duration {
	b.Helper()
	var r unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// logging is the program's text with a rule that logs before the refusals and drops.
func logging(p *nft.Program, log string) string {
	if log == "" {
		return p.String()
	}
	var b strings.Builder
	for line := range strings.Lines(p.String()) {
		switch statement := strings.TrimSpace(line); {
		case strings.Contains(statement, "reject with"), statement == "drop":
			b.WriteString("\t\t" + log + "\n" + line)
		default:
			b.WriteString(line)
		}
	}
	return b.String()
}

// readLog reads the log group in a thread of its own. spent ends that, and returns the thread's CPU time
// and the number of messages.
func readLog(b *testing.B, netns int) (spent func() (time.Duration, int)) {
	b.Helper()
	const (
		subsystem, config    = 4, 1 // NFNL_SUBSYS_ULOG, NFULNL_MSG_CONFIG
		command, mode        = 1, 2 // NFULA_CFG_CMD, NFULA_CFG_MODE
		bind, copyPacket     = 1, 2 // NFULNL_CFG_CMD_BIND, NFULNL_COPY_PACKET
		packet, wholeNetlink = 0, 64
	)
	conn, err := mdlayher.Dial(unix.NETLINK_NETFILTER, &mdlayher.Config{NetNS: netns})
	must(b, err)
	body := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}
	body = binary.BigEndian.AppendUint16(body, logGroup)
	for _, attr := range []mdlayher.Attribute{
		{Type: command, Data: []byte{bind}}, {Type: mode, Data: append(binary.BigEndian.AppendUint32(nil, wholeNetlink),
			copyPacket, 0)},
	} {
		attrs, err := mdlayher.MarshalAttributes([]mdlayher.Attribute{attr})
		must(b, err)
		_, err = conn.Execute(mdlayher.Message{
			Header: mdlayher.Header{Type: subsystem<<8 | config, Flags: mdlayher.Request | mdlayher.Acknowledge},
			Data:   append(body[:len(body):len(body)], attrs...),
		})
		must(b, err)
	}
	var cpu time.Duration
	var messages int
	var reading sync.WaitGroup
	reading.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var before, after unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &before); err != nil {
			b.Error(err)
			return
		}
		for {
			list, err := conn.Receive()
			for _, m := range list {
				if m.Header.Type == subsystem<<8|packet {
					messages++
				}
			}
			if err != nil && !strings.Contains(err.Error(), "no buffer space") {
				break
			}
		}
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &after); err != nil {
			b.Error(err)
		}
		cpu = time.Duration(after.Utime.Nano()+after.Stime.Nano()) - time.Duration(before.Utime.Nano()+before.Stime.Nano())
	})
	return func() (time.Duration, int) {
		must(b, conn.SetDeadline(time.Now()))
		reading.Wait()
		must(b, conn.Close())
		return cpu, messages
	}
}
