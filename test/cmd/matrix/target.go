package main

import (
	"fmt"

	"nftproxy/test/lib/aptget"
)

// target is an architecture of machines, in qemu's and the kernel's words.
type target struct {
	// command runs it, and is of Debian's package pkg.
	command, pkg string
	// devices are the machine, and the line for the jobs, which is qemu's chardev "jobs".
	devices []string
	// emulated is a processor of qemu's own, and accelerated this computer's.
	emulated, accelerated processor
	// parameters are the kernel's; line is the file of the line for the jobs.
	parameters, line string
}

// processor is what qemu and the kernel are told about a machine's processors; the first two arguments are the way to
// run them.
type processor struct {
	args       []string
	parameters string
}

func targetOf(arch string) (target, error) {
	accelerator := []string{"-accel", "tcg,thread=multi"}
	var t target
	switch arch {
	case "amd64":
		// The clock is the HPET, whose rate is known: on a busy computer the kernel can measure a
		// wrong one for the TSC. Nor does the kernel check the timer at boot: there it panics if a few
		// ticks are late ("IO-APIC + timer doesn't work").
		t = target{
			command: "qemu-system-x86_64", pkg: "qemu-system-x86",
			devices:    []string{"-machine", "pc", "-device", "isa-serial,chardev=jobs,index=1"},
			emulated:   processor{append(accelerator, "-cpu", "Nehalem"), "tsc=unstable clocksource=hpet"},
			parameters: "console=ttyS0 no_timer_check", line: "/dev/ttyS1",
		}
	case "arm64":
		t = target{
			command: "qemu-system-aarch64", pkg: "qemu-system-arm",
			devices:    []string{"-machine", "virt", "-device", "virtio-serial-pci", "-device", "virtconsole,chardev=jobs"},
			emulated:   processor{append(accelerator, "-cpu", "cortex-a72"), ""},
			parameters: "console=ttyAMA0", line: "/dev/hvc0",
		}
	default:
		return target{}, fmt.Errorf("no machines of the architecture %q: only amd64 and arm64", arch)
	}
	t.accelerated = processor{[]string{"-accel", "kvm", "-cpu", "host"}, ""}
	return t, nil
}

// emulator is the path of qemu; empty for kernels for user mode, which need none.
func (t target) emulator(userMode bool) (string, error) {
	if userMode {
		return "", nil
	}
	return aptget.Command(t.command, t.pkg)
}

// cacheName is the folder of the user's cache for an architecture's kernels and commands.
func cacheName(arch string) string {
	if arch == "amd64" {
		return "kernels" // as before there were others
	}
	return "kernels-" + arch
}
