package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// pause is the time between the end of a service and its next start.
const pause = time.Second

// InitMachine is the first process of a machine: it makes the root file system, starts
// the services, starts each again that ends, and takes note of orphans that end.
// It returns only with an error, which ends the machine. path is that of the
// machine's description.
func InitMachine(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var c machineConfig
	if err := json.Unmarshal(b, &c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if os.Getpid() != 1 {
		return errors.New("the process is not the first of its process namespace")
	}
	if err := c.enterRoot(); err != nil {
		return fmt.Errorf("make the root file system: %w", err)
	}
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return os.NewSyscallError("sethostname", err)
	}
	fmt.Println(ready)
	return c.supervise()
}

func (c *machineConfig) supervise() error {
	running := map[int]machineService{}
	for _, s := range c.Services {
		if err := c.launch(s, running); err != nil {
			return err
		}
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECHILD):
			return errors.New("the machine has no services")
		case err != nil:
			return os.NewSyscallError("wait4", err)
		}
		s, ours := running[pid]
		if !ours {
			continue
		}
		delete(running, pid)
		fmt.Printf("%s ended: exit status %d, signal %d\n", s.Name, status.ExitStatus(), status.Signal())
		time.Sleep(pause)
		if err := c.launch(s, running); err != nil {
			return err
		}
	}
}

func (c *machineConfig) launch(s machineService, running map[int]machineService) error {
	log, err := os.OpenFile(filepath.Join(c.Dir, logs, s.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	// Not by os/exec, whose waiting would compete with the one for orphans.
	p, err := os.StartProcess(s.Args[0], s.Args, &os.ProcAttr{Dir: "/", Env: s.Env, Files: []*os.File{null, log, log}})
	if err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	running[p.Pid] = s
	return p.Release()
}
