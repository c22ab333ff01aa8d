package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckConfig(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, ".config")
	for path, text := range map[string]string{
		"net/Kconfig":      "menuconfig IP_VS\n\ttristate\nif IP_VS\n  config IP_VS_LC\nendif\nconfig VETH\n",
		"arch/x86/Kconfig": "config SMP\n", "arch/um/Kconfig.debug": "config HOSTFS\n"} {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	known, err := knownOptions(dir)
	if want := map[string]bool{"IP_VS": true, "IP_VS_LC": true, "VETH": true, "HOSTFS": true}; err != nil ||
		!maps.Equal(known, want) {
		t.Fatalf("options %v, error %v; want %v", known, err, want)
	}
	for _, c := range []struct{ name, option, isNow, lost string }{
		{"as asked", "", "", ""},
		{"a module that is part of the kernel", "CONFIG_VETH=m", "CONFIG_VETH=y", "CONFIG_VETH=m"},
		{"an option that this kernel does not know", "CONFIG_SMP=y", "", ""},
		{"one not set", "CONFIG_IP_VS=m", "# CONFIG_IP_VS is not set", "CONFIG_IP_VS=m"},
	} {
		config := strings.Replace("\n"+userModeConfig, c.option+"\n", c.isNow+"\n", 1)
		if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
			t.Fatal(err)
		}
		err := checkConfig(file, known)
		if c.lost == "" && err != nil || c.lost != "" && (err == nil || !strings.HasSuffix(err.Error(), " "+c.lost)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
