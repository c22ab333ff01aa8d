package child

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the CPU time of a process, to the nanosecond, and that of its children
// that have ended, in the kernel's ticks of 10 ms.
func CPUTime(pid int) (time.Duration, error) {
	// The clock of another process's CPU time: clock_getcpuclockid(3).
	const schedulerClock = 2
	var now unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedulerClock), &now); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("CPU time of process %d's children: %w", pid, err)
	}
	children, err := childTicks(string(stat))
	if err != nil {
		return 0, fmt.Errorf("CPU time of process %d's children: %w", pid, err)
	}
	const perSecond = 100 // USER_HZ, whatever the kernel's own
	return time.Duration(now.Nano()) + time.Duration(children)*time.Second/perSecond, nil
}

// childTicks reads cutime and cstime, the 16th and 17th field of proc_pid_stat(5).
func childTicks(stat string) (int64, error) {
	// The second field is a name in parentheses. It may hold spaces and parentheses
	// itself.
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) < 15 {
		return 0, fmt.Errorf("cannot read %q", stat)
	}
	user, userErr := strconv.ParseInt(fields[13], 10, 64)
	system, systemErr := strconv.ParseInt(fields[14], 10, 64)
	return user + system, errors.Join(userErr, systemErr)
}

// Descendants returns a process's children and their children. Each thread lists its own
// children (CONFIG_PROC_CHILDREN).
func Descendants(pid int) []int {
	var pids []int
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has gone
		}
		for _, word := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				pids = append(append(pids, child), Descendants(child)...)
			}
		}
	}
	return pids
}

// StatusBytes returns a field of a process's status, in bytes; 0 if the process has gone.
func StatusBytes(pid int, field string) int64 {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if rest, found := strings.CutPrefix(lines.Text(), field); found {
			kilobytes, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kilobytes << 10
		}
	}
	return 0
}
