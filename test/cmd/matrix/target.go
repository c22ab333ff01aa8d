package main

import "fmt"

// target is an architecture of machines, in qemu's and the kernel's words.
type target struct {
	// command emulates it, and is of Debian's package pkg.
	command, pkg string
	// devices are the machine, its processor, and the line for the jobs, which is qemu's chardev "jobs".
	devices []string
	// parameters are the kernel's; line is the file of the line for the jobs.
	parameters, line string
}

func targetOf(arch string) (target, error) {
	switch arch {
	case "amd64":
		// The clock is the HPET, whose rate is known: on a busy computer the kernel can measure a
		// wrong one for the TSC. Nor does the kernel check the timer at boot: there it panics if a few
		// ticks are late ("IO-APIC + timer doesn't work").
		return target{
			"qemu-system-x86_64", "qemu-system-x86",
			[]string{"-machine", "pc", "-cpu", "Nehalem", "-device", "isa-serial,chardev=jobs,index=1"},
			"console=ttyS0 tsc=unstable clocksource=hpet no_timer_check", "/dev/ttyS1",
		}, nil
	case "arm64":
		return target{
			"qemu-system-aarch64", "qemu-system-arm",
			[]string{"-machine", "virt", "-cpu", "cortex-a72", "-device", "virtio-serial-pci", "-device",
				"virtconsole,chardev=jobs"},
			"console=ttyAMA0", "/dev/hvc0",
		}, nil
	}
	return target{}, fmt.Errorf("no machines of the architecture %q: only amd64 and arm64", arch)
}

// cacheName is the folder of the user's cache for an architecture's kernels and commands.
func cacheName(arch string) string {
	if arch == "amd64" {
		return "kernels" // as before there were others
	}
	return "kernels-" + arch
}
