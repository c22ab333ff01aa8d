package result

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Facts are the conditions on which figures depend, beside the program.
type Facts struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	// Memory is in MB (10^6 bytes).
	Memory int    `json:"memory"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
	// Load is the load averages of 1, 5 and 15 minutes at the start: on a busy
	// machine all times are too long.
	Load string `json:"load"`
	// Versions are the versions of the compared programs, by name.
	Versions map[string]string `json:"versions"`
}

// Machine returns the facts about this machine, without Versions.
func Machine() (Facts, error) {
	f := Facts{Cores: runtime.NumCPU(), Go: runtime.Version(), Versions: map[string]string{}}
	var uname unix.Utsname
	var info unix.Sysinfo_t
	if err := errors.Join(unix.Uname(&uname), unix.Sysinfo(&info)); err != nil {
		return f, fmt.Errorf("machine facts: %w", err)
	}
	f.Kernel = unix.ByteSliceToString(uname.Release[:])
	f.Memory = int(uint64(info.Totalram) * uint64(info.Unit) / 1e6)
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return f, fmt.Errorf("machine facts: %w", err)
	}
	f.Load = strings.Join(strings.Fields(string(load))[:3], " ")
	f.CPU, err = cpuModel()
	return f, err
}

// cpuModel returns the name of the first processor in /proc/cpuinfo. On architectures
// without such a name it returns the architecture.
func cpuModel() (string, error) {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "", fmt.Errorf("machine facts: %w", err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if key, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value), nil
		}
	}
	return runtime.GOARCH, nil
}
