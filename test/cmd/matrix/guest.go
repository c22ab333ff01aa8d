package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// guest is the command in a virtual machine. As its first process it loads the modules that the image has, runs the
// image's jobs one after the other, and ends the machine. What jobs write goes to the second serial line, between a
// line that begins and one that ends each job. The kernel also calls it as modprobe.
func guest() error {
	if filepath.Base(os.Args[0]) == modprobe {
		return loadOnDemand(os.Args[len(os.Args)-1])
	}
	if os.Getpid() != 1 {
		return runJobs()
	}
	if err := prepare(); err != nil {
		fmt.Println("guest: prepare:", err)
	}
	if os.Getenv(computerVariable) != "" {
		if err := enterComputer(); err != nil {
			return fmt.Errorf("enter the files of the computer: %w", err)
		}
	}
	if err := reapUntilDone(); err != nil {
		fmt.Println("guest:", err)
	}
	unix.Sync()
	how := unix.LINUX_REBOOT_CMD_RESTART // qemu ends then; it has no way to power off
	if os.Getenv(userModeVariable) != "" {
		how = unix.LINUX_REBOOT_CMD_POWER_OFF // a restart begins the machine anew
	}
	return os.NewSyscallError("reboot", unix.Reboot(how))
}

// prepare makes the machine fit for tests.
func prepare() error {
	for _, m := range []struct{ kind, on string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/run"}, {"tmpfs", "/tmp"},
		{"tmpfs", "/var/tmp"},
		{"devpts", "/dev/pts"}, {"tmpfs", "/dev/shm"},
	} {
		if err := os.MkdirAll(m.on, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.on, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.on, err)
		}
	}
	for link, target := range map[string]string{"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink("/proc/self/"+target, "/dev/"+link); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Chmod("/tmp", 0o777|os.ModeSticky), os.Chmod("/var/tmp", 0o777|os.ModeSticky),
		unix.Sethostname([]byte("guest"))); err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	if err := traceRequests(); err != nil {
		return fmt.Errorf("trace requests for modules: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// loadModules loads the modules in the order of their list. One that the machine has no device for
// is no error of the tests.
func loadModules() error {
	list, err := os.ReadFile(moduleList)
	if err != nil {
		return err
	}
	for file := range strings.Lines(string(list)) {
		if err := loadModule(strings.TrimSpace(file)); err != nil {
			fmt.Printf("guest: module %s: %v\n", filepath.Base(file), err)
		}
	}
	return nil
}

// loadOnDemand loads the modules for a name that the kernel asks for, as modprobe does.
func loadOnDemand(name string) error {
	text, err := os.ReadFile(onDemandList)
	if err != nil {
		return err
	}
	var demands []demand
	if err := json.Unmarshal(text, &demands); err != nil {
		return err
	}
	found, errs := false, []error(nil)
	for _, d := range demands {
		if slices.Contains(d.Names, moduleName(name)) {
			found = true
			for _, file := range d.Files {
				errs = append(errs, loadModule(file))
			}
		}
	}
	if !found {
		return fmt.Errorf("no module %s", name)
	}
	return errors.Join(errs...)
}

// loadModule loads a module, if it is not loaded yet.
func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// reapUntilDone runs this program again for the jobs, and reaps what they leave behind.
func reapUntilDone() error {
	// Its file may be out of sight (enterComputer), and it is the same program still.
	process, err := os.StartProcess("/proc/self/exe", []string{"/" + initName}, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "USER=root", "REQUIRE_PRIVILEGED=1",
			lineVariable + "=" + os.Getenv(lineVariable)},
	})
	if err != nil {
		return err
	}
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case pid == process.Pid:
			return nil
		}
	}
}

// runJobs runs the jobs and reports them on the serial line.
func runJobs() error {
	line, err := serialLine()
	if err != nil {
		return err
	}
	defer line.Close()
	text, err := os.ReadFile(jobList)
	if err != nil {
		return err
	}
	var jobs []job
	if err := json.Unmarshal(text, &jobs); err != nil {
		return err
	}
	for _, j := range jobs {
		fmt.Fprint(line, frame{kind: frameBegin, job: j.Name})
		status := runJob(j, line)
		requests, err := takeRequests()
		if err != nil {
			return err
		}
		for _, r := range requests {
			fmt.Fprint(line, frame{kind: frameAsked, job: j.Name, asked: r})
		}
		if _, err := fmt.Fprint(line, frame{kind: frameEnd, job: j.Name, status: status}); err != nil {
			return err
		}
	}
	return nil
}

func runJob(j job, line io.Writer) (status int) {
	cmd := exec.Command(j.Command[0], j.Command[1:]...)
	cmd.Dir = j.Dir
	cmd.Env = append(os.Environ(), j.Env...)
	cmd.Stdout, cmd.Stderr = line, line
	err := cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(line, "guest:", err)
		return notStarted
	}
	return 0
}

// serialLine opens the serial line for the jobs, which changes nothing that is written to it.
func serialLine() (*os.File, error) {
	line, err := os.OpenFile(os.Getenv(lineVariable), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	state, err := unix.IoctlGetTermios(int(line.Fd()), unix.TCGETS)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("TCGETS", err), line.Close())
	}
	state.Oflag &^= unix.OPOST
	state.Lflag &^= unix.ECHO | unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(int(line.Fd()), unix.TCSETS, state); err != nil {
		return nil, errors.Join(os.NewSyscallError("TCSETS", err), line.Close())
	}
	return line, nil
}
